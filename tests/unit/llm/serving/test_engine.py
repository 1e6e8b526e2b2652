"""The engine's steps over a program that notices every wrong slot of the cache."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.llm.serving.counting_program import CountingProgram, logprob, next_token
from workers.llm.serving import step_outputs
from workers.llm.serving.batching import CallShape
from workers.llm.serving.blocks import BlockPool
from workers.llm.serving.engine import Engine, Outputs, QueueFull, Refused
from workers.llm.serving.schedule import Capacity
from workers.llm.serving.sequences import FinishReason, Output, SamplingOptions, TokenSequence
from workers.llm.serving.step_inputs import inputs_of

BLOCK = 4
LENGTH = 32
PLAIN = (
    *(CallShape("prefill", batch, tokens, 0) for batch in (1, 2) for tokens in (8, 16)),
    *(CallShape("decode", batch, 1, context) for batch in (1, 4) for context in (16, LENGTH)),
)
RESUMING = (*PLAIN, CallShape("extend", 1, 8, LENGTH), CallShape("score", 2, 8, LENGTH))


@dataclass
class Driver:
    """Runs an engine step by step, and keeps what came out."""

    program: CountingProgram
    outputs: dict[TokenSequence, list[Output]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.engine = Engine(self.program, self._take, max_waiting=100)

    def _take(self, outputs: Outputs) -> None:
        for sequence, output in outputs:
            assert not any(earlier.finish for earlier in self.outputs[sequence]), "an output after the end"
            self.outputs[sequence].append(output)

    def submit(self, *sequences: TokenSequence) -> None:
        for sequence in sequences:
            self.engine.check(sequence)
        self.engine.submit(sequences)

    def run(self) -> None:
        for _ in range(3000):
            if not (self.engine.running or self.engine.waiting):
                return
            self.engine.step()
        raise AssertionError("sequences that never end")

    def tokens(self, sequence: TokenSequence) -> list[int]:
        return [output.token for output in self.outputs[sequence] if output.token is not None]


def driver(shapes: Sequence[CallShape] = RESUMING, pool_blocks: int = 33) -> Driver:
    return Driver(CountingProgram(shapes, BLOCK, pool_blocks, LENGTH))


def expected(sequence: TokenSequence) -> list[int]:
    tokens = list(sequence.prompt)
    for _ in range(sequence.max_new_tokens):
        tokens.append(next_token(tokens))
        if tokens[-1] in sequence.stop_tokens:
            break
    return tokens[len(sequence.prompt) :]


@st.composite
def requests(draw: st.DrawFn, longest: int) -> TokenSequence:
    prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=longest))  # few tokens: many begin alike
    new = draw(st.integers(1, LENGTH - len(prompt)))
    stops = draw(st.frozensets(st.integers(0, 96), max_size=2))
    scores = draw(st.booleans()) and longest > 16 and len(prompt) > 1
    return TokenSequence(prompt, new, stop_tokens=stops, is_scored=scores)


@st.composite
def days(draw: st.DrawFn) -> tuple[bool, int, list[tuple[int, TokenSequence, int | None]]]:
    """What a program can do, its blocks, and requests: the step before which each comes, and is cancelled."""
    resumes = draw(st.booleans())
    pool_blocks = draw(st.integers(1 + LENGTH // BLOCK, 40))
    arrivals = draw(
        st.lists(
            st.tuples(st.integers(0, 30), requests(LENGTH - 1 if resumes else 16), st.none() | st.integers(0, 40)),
            min_size=1,
            max_size=12,
        )
    )
    return resumes, pool_blocks, arrivals


@settings(deadline=None)
@given(days())
def test_every_sequence_ends_right_and_no_block_is_lost(
    day: tuple[bool, int, list[tuple[int, TokenSequence, int | None]]],
) -> None:
    resumes, pool_blocks, arrivals = day
    it = driver(RESUMING if resumes else PLAIN, pool_blocks)
    cancelled = {}
    for step in range(42):
        for at, sequence, leaves in arrivals:
            if at == step:
                it.submit(sequence)
            if leaves == step and sequence.number and not any(o.finish for o in it.outputs[sequence]):
                it.engine.cancel(sequence)
                cancelled[sequence] = it.tokens(sequence)
        it.engine.step()
        assert not any(sequence.blocks for sequence in cancelled), "blocks of one who left"
    it.run()
    assert it.engine.pool.free == it.engine.pool.count
    for _, sequence, _ in arrivals:
        last = it.outputs[sequence][-1]
        right = expected(sequence)
        if last.finish is FinishReason.CANCELLED:
            assert it.tokens(sequence) == right[: len(it.tokens(sequence))]
        else:
            assert it.tokens(sequence) == right
            assert last.finish is (FinishReason.STOP if right[-1] in sequence.stop_tokens else FinishReason.LENGTH)
        scored = [output.prompt_logprobs for output in it.outputs[sequence] if output.prompt_logprobs]
        if scored:
            prompt = list(sequence.prompt)
            assert [known.logprob for known in scored[0]] == [
                logprob(prompt[:end], prompt[end]) for end in range(1, len(prompt))
            ]


@given(st.lists(requests(16), min_size=2, max_size=10))
@settings(deadline=None, max_examples=100)
def test_sequences_begin_in_the_order_of_their_arrival(sequences: list[TokenSequence]) -> None:
    it = driver(PLAIN, 1 + 2 * LENGTH // BLOCK)
    it.submit(*sequences)
    began: list[int] = []
    while it.engine.running or it.engine.waiting:
        it.engine.step()
        began += sorted(s.number for s in it.outputs if s.generated and s.number not in began)
    assert began == sorted(began)


def test_the_youngest_gives_its_blocks_back_and_goes_on_later() -> None:
    it = driver(pool_blocks=11)
    first, second = (TokenSequence([token] * 6, 20) for token in (1, 2))
    it.submit(first, second)
    it.run()
    assert it.engine.counters.preemptions > 0
    assert [it.tokens(sequence) for sequence in (first, second)] == [expected(first), expected(second)]


def test_prompts_that_begin_alike_are_computed_once() -> None:
    it = driver()
    begin = [5, 6, 7] * 7
    it.submit(TokenSequence([*begin, 1], 2))
    it.run()
    second = TokenSequence([*begin, 2], 3)
    it.submit(second)
    it.run()
    assert it.engine.counters.shared_tokens == 20
    assert it.tokens(second) == expected(second)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (TokenSequence([], 1), "prompt is empty"),
        (TokenSequence([1] * 20, 1), "at most 16 can be processed"),
        (TokenSequence([1] * 10, 30), "10 tokens and 30 new ones are more than the 32"),
        (TokenSequence([1] * 10, 20), "30 tokens need 8 blocks of the KV cache, it has 5"),
        (TokenSequence([1, 2], 1, is_scored=True), "no entry points that score"),
    ],
)
def test_what_can_never_be_computed_is_refused_with_the_limit(sequence: TokenSequence, message: str) -> None:
    with pytest.raises(Refused, match=message):
        driver(PLAIN, 6).engine.check(sequence)


def test_a_full_queue_says_when_to_come_again() -> None:
    it = driver()
    it.submit(*(TokenSequence([1], 1) for _ in range(100)))
    with pytest.raises(QueueFull) as refused:
        it.submit(TokenSequence([1], 1))
    assert refused.value.retry_after_s >= 1


class LeakyPool(BlockPool):
    def take(self, count: int) -> list[int]:
        blocks = super().take(count)
        return [1, *blocks[1:]] if len(blocks) > 1 else blocks


def test_the_program_notices_a_wrong_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_right() -> bool:
        it = driver(PLAIN)
        sequences = [TokenSequence([number, 2, 3, 4, 5], 15) for number in range(4)]
        it.submit(*sequences)
        try:
            it.run()
        except (AssertionError, ValueError):
            return False
        return all(it.tokens(sequence) == expected(sequence) for sequence in sequences)

    assert is_right()
    for fault in _faults():
        with monkeypatch.context() as patch:
            fault(patch)
            assert not is_right()


def _faults() -> Iterator[Any]:
    blocks = Capacity.blocks
    yield lambda patch: patch.setattr("workers.llm.serving.engine.BlockPool", LeakyPool)
    yield lambda patch: patch.setattr(Capacity, "blocks", lambda self, tokens: max(1, blocks(self, tokens) - 1))

    def shifted(call: Any, table_blocks: int) -> Any:
        inputs = inputs_of(call, table_blocks)
        return inputs | {"positions": inputs["positions"] + (inputs["positions"] > 6)}

    yield lambda patch: patch.setattr(step_outputs, "inputs_of", shifted)


def test_a_seed_gives_the_same_choices_however_often_a_sequence_is_computed() -> None:
    first, second = (TokenSequence([1, 2], 5, SamplingOptions(temperature=1.0, seed=7)) for _ in range(2))
    assert first.step_seed == second.step_seed < 2**31
    first.tokens.append(9)
    assert first.step_seed != second.step_seed
