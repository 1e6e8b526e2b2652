"""A server's tokens are the model's at every tensor parallelism, and the comparison sees wrong schedulers."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.stages.serve import gate
from tests.integration.llm.test_export import compile_for_cpu
from tests.integration.models import make_checkpoint
from tests.integration.stage_programs import NARROW, run_here
from workers.llm.models.model_source import load_model
from workers.llm.numerics.reference import ReferenceModel, load_reference
from workers.llm.programs import export
from workers.llm.serving import step_outputs
from workers.llm.serving.blocks import BlockPool
from workers.llm.serving.compiled_program import CompiledProgram
from workers.llm.serving.engine import Engine, Outputs
from workers.llm.serving.schedule import Capacity
from workers.llm.serving.sequences import TokenSequence
from workers.llm.serving.step_inputs import inputs_of
from workers.llm.serving_load.client import CompletionRequest
from workers.llm.serving_load.teacher_forcing import compare_served
from workers.llm.serving_load.workloads import mixed_requests

CACHE, LONGEST, SEQUENCES = 64, 50, 24
SETTINGS = {"precision": "f32"}


class ServedModel:
    """A model, its program for a server, and the reference."""

    def __init__(self, folder: Path, tp: int) -> None:
        model = make_checkpoint(folder / "model", "llama")
        flags = [f"--model={model}", "--precision=f32", f"--tp={tp}", f"--cache-length={CACHE}", "--block-tokens=16"]
        sizes = ["--batch=2", "--prompt-tokens", "16", "32", "--decode-batch", "2", "4", "--prefill-batch=2"]
        run_here(export.main, folder, *flags, *sizes, "--chunk-tokens=16", "--kv-pool-blocks=14")
        compile_for_cpu(folder, tp, NARROW)
        self.program = CompiledProgram(folder / "outputs/config.json", folder / "model.vmfb", ["local-task"] * tp)
        self.reference: ReferenceModel = load_reference(load_model(str(model), None, {}))
        text = [3 + number * 7 % 200 for number in range(500)]
        self.requests = mixed_requests(text, SEQUENCES, LONGEST, CACHE, seed=1)

    def serve(self, requests: Sequence[CompletionRequest]) -> list[list[int]]:
        """Compute all sequences at once, in this thread."""
        served: dict[TokenSequence, list[int]] = {}

        def take(outputs: Outputs) -> None:
            for sequence, output in outputs:
                assert not output.message, output.message
                served.setdefault(sequence, []).extend([] if output.token is None else [output.token])

        engine = Engine(self.program, take)
        sequences = [TokenSequence(request.prompt, request.new_tokens) for request in requests]
        for sequence in sequences:
            engine.check(sequence)
        engine.submit(sequences)
        while engine.running or engine.waiting:
            engine.step()
        assert engine.counters.preemptions > 0, "the pool was to be too small for all"
        return [served[sequence] for sequence in sequences]

    def verdict(self) -> Any:
        """Serve, compare with the reference, and judge as the stage does."""
        return gate(SETTINGS, compare_served(self.reference, self.requests, self.serve(self.requests)))


@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel(tmp_path_factory.mktemp("served"), request.param)


def test_what_is_served_is_the_references_choice(model: ServedModel) -> None:
    """Prompts longer than the largest bucket are among them, and rows that give their blocks back for a while."""
    assert model.verdict() is None


class SharingPool(BlockPool):
    """Gives two sequences the same block."""

    def take(self, count: int) -> list[int]:
        blocks = super().take(count)
        return [1, *blocks[1:]] if len(blocks) > 1 else blocks


def faults() -> Iterator[Callable[[pytest.MonkeyPatch], None]]:
    blocks = Capacity.blocks
    yield lambda patch: patch.setattr("workers.llm.serving.engine.BlockPool", SharingPool)
    yield lambda patch: patch.setattr(Capacity, "blocks", lambda self, tokens: max(1, blocks(self, tokens) - 1))

    def shifted(call: Any, table_blocks: int) -> Any:
        inputs = inputs_of(call, table_blocks)
        return inputs | {"positions": inputs["positions"] + (inputs["positions"] > 20)}

    yield lambda patch: patch.setattr(step_outputs, "inputs_of", shifted)


@pytest.mark.parametrize("fault", list(faults()), ids=["a shared block", "a block too few", "a position off by one"])
def test_a_wrong_scheduler_is_seen(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    try:
        assert model.verdict() is not None
    except (AssertionError, ValueError) as problem:
        assert "out of bounds" in str(problem) or "blocks are wanted" in str(problem)
