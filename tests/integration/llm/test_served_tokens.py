"""A server's tokens are the model's, on two devices, and the comparison sees wrong schedulers."""

from collections.abc import Callable, Sequence
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
from workers.llm.serving.compiled_program import CompiledProgram
from workers.llm.serving.engine import Engine, Outputs
from workers.llm.serving.schedule import Call
from workers.llm.serving.sequences import TokenSequence
from workers.llm.serving.step_inputs import inputs_of
from workers.llm.serving_load.client import CompletionRequest
from workers.llm.serving_load.teacher_forcing import compare_served
from workers.llm.serving_load.workloads import mixed_requests

CACHE, BLOCK, LONGEST, SEQUENCES, MAX_STEPS = 64, 16, 50, 24, 2000
SETTINGS = {"precision": "f32"}


class ServedModel:
    """A model, its program for a server, and the reference."""

    def __init__(self, folder: Path, tp: int) -> None:
        model = make_checkpoint(folder / "model", "llama")
        flags = [
            f"--model={model}",
            "--precision=f32",
            f"--tp={tp}",
            f"--cache-length={CACHE}",
            f"--block-tokens={BLOCK}",
        ]
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
        for _ in range(MAX_STEPS):
            engine.step()
        assert not engine.running and not engine.waiting, "it never ends"
        return [served[sequence] for sequence in sequences]

    def verdict(self) -> Any:
        """Serve, compare with the reference, and judge as the stage does."""
        return gate(SETTINGS, compare_served(self.reference, self.requests, self.serve(self.requests)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel(tmp_path_factory.mktemp("served"), tp=2)


def test_what_is_served_is_the_references_choice(model: ServedModel) -> None:
    """Prompts longer than the largest bucket are among them, and rows that give their blocks back for a while."""
    assert model.verdict() is None


def shared_block(call: Call, inputs: dict[str, Any]) -> None:
    """Two rows have the same first block."""
    inputs["block_table"][1 : len(call.rows), 0] = inputs["block_table"][0, 0]


def block_too_few(call: Call, inputs: dict[str, Any]) -> None:
    """A row's last tokens are written over those before."""
    for row, (sequence, count) in enumerate(zip(call.rows, call.counts, strict=True)):
        last = (sequence.cached + count - 1) // BLOCK
        inputs["block_table"][row, last:] = inputs["block_table"][row, max(last - 1, 0)]


def position_off_by_one(call: Call, inputs: dict[str, Any]) -> None:
    """A row that is decoded from a certain length on stands one further."""
    positions = inputs["positions"]
    inputs["positions"] = positions + ((positions > LONGEST // 2) & (positions % BLOCK < BLOCK - 1))


@pytest.mark.parametrize("fault", [shared_block, block_too_few, position_off_by_one])
def test_a_wrong_scheduler_is_seen(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Call, dict[str, Any]], None]
) -> None:
    def wrong(call: Call, table_blocks: int) -> dict[str, Any]:
        inputs = inputs_of(call, table_blocks)
        if call.shape.kind == "decode":
            fault(call, inputs)
        return inputs

    monkeypatch.setattr(step_outputs, "inputs_of", wrong)
    assert "not the reference's choice" in model.verdict().message
