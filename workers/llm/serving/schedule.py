"""What the next step of the engine computes: pure decisions over the sequences and the blocks that are free.

A sequence is admitted when blocks for all that it has, and the next token, are free; more are taken as it grows. When
none is left, the youngest gives its blocks back and is computed again later. Where a program can't compute a sequence
from its middle on, it is admitted when blocks for all of it are free. A step takes prompts up to a number of tokens, so
that those who wait for their next token never wait for long, then a next token for every other sequence.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from workers.llm.serving.batching import CallCosts, CallShape
from workers.llm.serving.sequences import TokenSequence


@dataclass(frozen=True)
class Capacity:
    """The limits of a program's cache."""

    block_tokens: int
    pool_blocks: int  #: that sequences can hold
    max_rows: int  #: that run at a time
    length: int  #: tokens that one sequence can have
    step_tokens: int  #: of prompts, that one step takes at most where it has a choice
    can_sample: bool  #: next tokens other than the likeliest can be chosen

    def blocks(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True)
class Call:
    """One call of an entry point, with its rows and how many of each row's pending tokens it takes."""

    shape: CallShape
    rows: tuple[TokenSequence, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """What is done next, in this order; an empty one where there is nothing to do."""

    preempted: tuple[TokenSequence, ...] = ()
    admitted: tuple[TokenSequence, ...] = ()
    calls: tuple[Call, ...] = ()


def refusal(sequence: TokenSequence, capacity: Capacity, costs: CallCosts) -> str | None:
    """Return why a program can never compute a sequence, or None."""
    prompt, most = len(sequence.prompt), sequence.most_tokens
    longest = capacity.length if costs.tokens("extend") else min(costs.largest("prefill"), capacity.length)
    if not prompt:
        return "the prompt is empty: it needs at least 1 token"
    if prompt > longest:
        return f"the prompt has {prompt} tokens, at most {longest} can be processed"
    if most > capacity.length:
        return f"{prompt} tokens and {sequence.max_new_tokens} new ones are more than the {capacity.length} that fit"
    if capacity.blocks(most) > capacity.pool_blocks:
        return f"{most} tokens need {capacity.blocks(most)} blocks of the KV cache, it has {capacity.pool_blocks}"
    if sequence.is_scored and not costs.tokens("score"):
        return "this program has no entry points that score prompts: leave echo or logprobs out"
    if sequence.options.temperature and not capacity.can_sample:
        return "this program has no entry points that sample: give temperature 0"
    return None


def decide(
    waiting: Iterable[TokenSequence],
    running: Sequence[TokenSequence],
    free_blocks: int,
    capacity: Capacity,
    costs: CallCosts,
) -> Step:
    """Return the next step; `waiting` and `running` are in the order of arrival."""
    growing = [sequence for sequence in running if _lacks_block(sequence, capacity)]
    if len(growing) > free_blocks:
        return Step(preempted=(running[-1],))
    free_blocks -= len(growing)
    admitted = tuple(_admissible(waiting, len(running), free_blocks, capacity, bool(costs.tokens("extend"))))
    if admitted:
        return Step(admitted=admitted)  # which of them begin as others do is known only then
    return Step(calls=tuple(_calls(running, capacity, costs)))


def _lacks_block(sequence: TokenSequence, capacity: Capacity) -> bool:
    return capacity.blocks(len(sequence.tokens)) > len(sequence.blocks)


def blocks_to_admit(sequence: TokenSequence, capacity: Capacity, *, can_resume: bool) -> int:
    """Return how many blocks a sequence gets at its beginning."""
    return capacity.blocks(len(sequence.tokens) + 1 if can_resume else sequence.most_tokens)


def _admissible(
    waiting: Iterable[TokenSequence], rows: int, free_blocks: int, capacity: Capacity, can_resume: bool
) -> Iterable[TokenSequence]:
    """Yield the first ones that fit; beside them every row that runs keeps a block to grow into."""
    for sequence in waiting:
        needed = blocks_to_admit(sequence, capacity, can_resume=can_resume)
        if rows == capacity.max_rows or needed + (rows if can_resume else 0) > free_blocks:
            return
        yield sequence
        rows, free_blocks = rows + 1, free_blocks - needed


def _calls(running: Sequence[TokenSequence], capacity: Capacity, costs: CallCosts) -> Iterable[Call]:
    """Yield calls that take prompts, up to the tokens of a step, then those that decode all other rows."""
    tokens, is_full = 0, False
    chosen: dict[str, list[tuple[TokenSequence, int]]] = {}
    decoded: list[tuple[TokenSequence, int]] = []
    for sequence in running:
        work = _prompt_work(sequence, costs)
        if work is None:
            decoded.append((sequence, 1))
            continue
        kind, count = work
        is_full = is_full or (bool(tokens) and tokens + count > capacity.step_tokens)
        if not is_full:  # then a shorter one that came later waits, too
            tokens += count
            chosen.setdefault(kind, []).append((sequence, count))
    for kind, rows in (*chosen.items(), ("decode", decoded)):
        yield from _covering_calls(kind, rows, costs)


def _prompt_work(sequence: TokenSequence, costs: CallCosts) -> tuple[str, int] | None:
    """Return how a sequence's pending tokens go into the cache, and how many of them at once; None when decoded."""
    if sequence.unscored > 0:
        return "score", min(sequence.unscored, costs.tokens("score"))
    if not sequence.cached and sequence.pending <= costs.largest("prefill"):
        return "prefill", sequence.pending
    if sequence.pending > 1:
        return "extend", min(sequence.pending, costs.tokens("extend"))
    return None


def _covering_calls(kind: str, rows: list[tuple[TokenSequence, int]], costs: CallCosts) -> Iterable[Call]:
    def end(row: tuple[TokenSequence, int]) -> int:
        sequence, count = row
        return sequence.cached + count

    rows.sort(key=end, reverse=True)
    rest = iter(rows)
    for shape, count in costs.cover(kind, [end(row) for row in rows]):
        sequences, counts = zip(*islice(rest, count), strict=True)
        yield Call(shape, sequences, counts)
