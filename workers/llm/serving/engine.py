"""Continuous batching: one thread that decides a step, calls the program, and hands on what came out, for ever.

The outputs of a step go to the callers' thread in one call, whatever the number of rows.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from workers.llm.runtime.waking import let_workers_finish
from workers.llm.serving.batching import CallCosts
from workers.llm.serving.blocks import BlockPool
from workers.llm.serving.counters import Counters
from workers.llm.serving.hashing import add_block_keys
from workers.llm.serving.measured_costs import capacity_of, measure_costs
from workers.llm.serving.paged_program import PagedProgram
from workers.llm.serving.schedule import Call, blocks_to_admit, decide, refusal
from workers.llm.serving.sequences import FinishReason, Output, TokenSequence
from workers.llm.serving.step_outputs import compute

Outputs = list[tuple[TokenSequence, Output]]


class Refused(ValueError):
    """A sequence that this program can never compute; the message says which limit it exceeds."""


class QueueFull(Exception):
    """More sequences wait than the server is set to keep."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"too many requests wait: retry in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class Unavailable(Exception):
    """The engine takes no sequences any more; the message says why."""


class Engine:
    """Computes sequences with one program. `deliver` gets the outputs of each step, in the engine's thread."""

    def __init__(
        self,
        program: PagedProgram,
        deliver: Callable[[Outputs], None],
        *,
        on_failure: Callable[[], None] = lambda: None,
        max_waiting: int = 1024,
    ) -> None:
        self.program = program
        self.costs = CallCosts(measure_costs(program))
        self.capacity = capacity_of(program, self.costs)
        self.pool = BlockPool(program.pool_blocks)
        self._can_resume = bool(self.costs.tokens("extend"))
        self.counters = Counters()
        self.failure: BaseException | None = None  #: what ended the engine's thread
        self._deliver, self._on_failure, self._max_waiting = deliver, on_failure, max_waiting
        self._waiting: deque[TokenSequence] = deque()
        self._running: list[TokenSequence] = []
        self._arrivals = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to compute, in a thread of its own."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Sequences that wait to be admitted."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    def check(self, sequence: TokenSequence) -> None:
        """Raise Refused for a sequence that can never be computed."""
        if reason := refusal(sequence, self.capacity, self.costs):
            raise Refused(reason)

    def submit(self, sequences: Sequence[TokenSequence]) -> None:
        """Queue sequences that have been checked, all or none. Raises QueueFull or Unavailable."""
        with self._changed:
            if self.failure or self._is_closing:
                raise Unavailable(f"the program failed: {self.failure}" if self.failure else "the server is ending")
            if self._waiting and len(self._waiting) + len(sequences) > self._max_waiting:
                raise QueueFull(self.counters.time_to_finish_s(len(self._waiting)))
            for sequence in sequences:
                self._arrivals += 1
                sequence.number = self._arrivals
                self._waiting.append(sequence)
            self._changed.notify()

    def cancel(self, sequence: TokenSequence) -> None:
        """Have a sequence's blocks freed before the next step; one that has ended stays as it is."""
        sequence.is_cancelled = True

    def close(self) -> None:
        """Take no more sequences, cancel those that there are, and end the thread."""
        with self._changed:
            self._is_closing = True
            for sequence in (*self._waiting, *self._running):
                sequence.is_cancelled = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        let_workers_finish()
        try:
            while self._wait_for_work():
                self.step()
        except Exception as problem:
            self._fail(problem)

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._waiting or self._running or self._is_closing):
                self._changed.wait()
            return bool(self._waiting or self._running)

    def _fail(self, problem: Exception) -> None:
        """End every sequence with the program's error: the device or the cache can't be relied on any more."""
        with self._changed:
            self.failure = problem
            rest = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
        self._deliver([(row, Output(None, FinishReason.ERROR, message=str(problem).split("\n")[0])) for row in rest])
        self._on_failure()

    def step(self) -> None:
        """Decide what is next and do it."""
        began = time.perf_counter()
        outputs = self._drop_cancelled()
        with self._changed:
            step = decide(self._waiting, self._running, self.pool.free, self.capacity, self.costs)
            for sequence in step.preempted:
                self._preempt(sequence)
            for sequence in step.admitted:
                self._admit(sequence)
        device_s = sum(self._compute(call, outputs) for call in step.calls)
        self._finish(outputs)
        if outputs:
            self._deliver(outputs)
        self.counters.add_step(time.perf_counter() - began, device_s)

    def _drop_cancelled(self) -> Outputs:
        with self._changed:
            dropped = [sequence for sequence in (*self._running, *self._waiting) if sequence.is_cancelled]
            if any(not sequence.blocks for sequence in dropped):
                self._waiting = deque(sequence for sequence in self._waiting if not sequence.is_cancelled)
        outputs = [(sequence, Output(None, FinishReason.CANCELLED)) for sequence in dropped]
        self._finish(outputs)
        return outputs

    def _preempt(self, sequence: TokenSequence) -> None:
        self._running.remove(sequence)
        self.pool.give_back(sequence.release())
        self._waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _admit(self, sequence: TokenSequence) -> None:
        """Give a sequence its blocks: those that another one filled alike, and new ones."""
        assert self._waiting.popleft() is sequence
        needed = blocks_to_admit(sequence, self.capacity, can_resume=self._can_resume)
        known = self._known_blocks(sequence)
        sequence.blocks = self.pool.share(sequence.block_keys[:known])
        sequence.blocks += self.pool.take(needed - known)
        sequence.cached = known * self.capacity.block_tokens
        self._running.append(sequence)
        self._running.sort(key=lambda row: row.number)
        self.counters.add_prompt(len(sequence.tokens), sequence.cached)

    def _known_blocks(self, sequence: TokenSequence) -> int:
        """Return how many blocks that others filled a sequence begins with, if computing the rest alone is cheaper."""
        if not self._can_resume or sequence.is_scored:
            return 0
        add_block_keys(sequence.block_keys, sequence.tokens, self.capacity.block_tokens)
        whole = (len(sequence.tokens) - 1) // self.capacity.block_tokens  # the last token is always computed
        known = self.pool.count_known(sequence.block_keys[:whole])
        tokens = len(sequence.tokens)
        if not known or tokens > self.costs.largest("prefill"):
            return known
        chunks = -(-(tokens - known * self.capacity.block_tokens) // self.costs.tokens("extend"))
        return known if chunks * self.costs.cost_s("extend", [tokens]) < self.costs.cost_s("prefill", [tokens]) else 0

    def _compute(self, call: Call, outputs: Outputs) -> float:
        """Call an entry point, note what its rows have in the cache now, and add the outputs; return its seconds."""
        for sequence, count in zip(call.rows, call.counts, strict=True):
            lacking = self.capacity.blocks(sequence.cached + count) - len(sequence.blocks)
            sequence.blocks += self.pool.take(max(lacking, 0))
        began = time.perf_counter()
        made = compute(self.program, call)
        seconds = time.perf_counter() - began
        for sequence, count, output in zip(call.rows, call.counts, made, strict=True):
            self._advance(sequence, count)
            if accepted := accept(sequence, output):
                outputs.append((sequence, accepted))
        self.counters.add_call(call, seconds)
        return seconds

    def _advance(self, sequence: TokenSequence, count: int) -> None:
        """Note that further tokens are in the cache, and what the blocks contain that they fill."""
        first = sequence.cached // self.capacity.block_tokens
        sequence.cached += count
        filled = sequence.cached // self.capacity.block_tokens
        if self._can_resume and filled > first:
            add_block_keys(sequence.block_keys, sequence.tokens, self.capacity.block_tokens)
            for index in range(first, filled):
                self.pool.name(sequence.blocks[index], sequence.block_keys[index])

    def _finish(self, outputs: Outputs) -> None:
        for sequence, output in outputs:
            if output.finish and sequence in self._running:
                self._running.remove(sequence)
                self.pool.give_back(sequence.release())
            if output.finish:
                self.counters.add_end(sequence, output.finish)


def accept(sequence: TokenSequence, output: Output) -> Output | None:
    """Take a step's output into its sequence; return what its caller is told, or None where that is nothing yet."""
    if output.prompt_logprobs:
        sequence.prompt_logprobs += output.prompt_logprobs
        return _scored(sequence) if sequence.unscored <= 0 else None
    if sequence.pending:
        return None
    token = output.token
    if token is None or token < 0:
        return Output(None, FinishReason.ERROR, message="the program returned no token: an argument was out of bounds")
    sequence.tokens.append(token)
    if token in sequence.stop_tokens:
        return Output(token, FinishReason.STOP, output.logprob)
    if sequence.generated >= sequence.max_new_tokens:
        return Output(token, FinishReason.LENGTH, output.logprob)
    return output


def _scored(sequence: TokenSequence) -> Output:
    sequence.is_scored = False
    finish = None if sequence.max_new_tokens else FinishReason.LENGTH
    return Output(None, finish, prompt_logprobs=tuple(sequence.prompt_logprobs))
