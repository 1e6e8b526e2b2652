"""Two programs of one model side by side, layer by layer, as `haloctl numerics` shows them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db.connection.engine import open_database
from db.store import Store
from jobs.variants import Precision
from tests.integration.commands.in_process import Answer, Command, answer, haloctl
from tests.stored_jobs import finish, result_of, start, submit
from workers.artifacts import ArtifactStore

__all__ = ["answer", "haloctl"]

RIGHT = {"error": 1e-7, "drift": 2e-7}


def report(error: float, layers: int = 2) -> dict[str, Any]:
    """A report whose second layer is off by this, in its v_proj."""
    off = {"error": error, "drift": 0.5}
    modules = [{"module": "model.layers.1.self_attn.v_proj", "rank": 1, "prefill": off, "decode": off}]
    is_off = error > 1e-4
    return {
        "precision": "f32",
        "limit": 1e-4,
        "batch": 1,
        "prompt_tokens": 16,
        "layers": [
            {"module": f"model.layers.{layer}", "prefill": off if layer == 1 else RIGHT, "decode": RIGHT}
            for layer in range(layers)
        ],
        "first": {"module": "model.layers.1", "phase": "prefill", "error": error} if is_off else None,
        "modules": modules if is_off else [],
        "module": {**modules[0], "phase": "prefill", "error": error} if is_off else None,
    }


def tensor(value: float) -> dict[str, Any]:
    return {"type": "2xf32", "rms": value, "sketch": [value, value], "moments": [value] * 3}


def dispatches(error: float) -> dict[str, Any]:
    """A report of a program whose second dispatch is off by this, and so is what follows."""
    values = {"prefill_bs1_t16_dispatch_1_matmul_2x8": 1.0, "prefill_bs1_t16_dispatch_4_matmul_2x4": 2.0 + error}
    return {
        "precision": "f32",
        "limit": 1e-4,
        "batch": 1,
        "prompt_tokens": 16,
        "results": {"prefill": tensor(1.0 + error)},
        "calls": [{"dispatch": name, "outputs": [tensor(value)]} for name, value in values.items()],
    }


@pytest.fixture
def tasks(haloctl: Command, tmp_path: Path) -> dict[str, str]:
    """The task of each precision's numerics."""
    reports = {"f32": report(1e-7), "f16": report(0.25), "bf16": {"problem": "no"}, "fp8": report(1e-7, layers=3)}
    files, tasks = ArtifactStore(tmp_path / "data/artifacts"), {}
    with open_database(f"sqlite:///{tmp_path}/data/haloctl.db", create=True) as database:
        store = Store(database)
        for precision, contents in reports.items():
            job = submit(store, variants={"precision": precision, "target": "cpu"}, stages=STAGES[precision])
            task = next(row.id for row in store.snapshot().tasks if row.id.startswith(job) and row.stage == "numerics")
            file = tmp_path / precision / "layers.json"
            file.parent.mkdir()
            file.write_text(json.dumps(contents))
            traced = file.with_name("dispatches.json")
            traced.write_text(json.dumps(dispatches(0.0 if precision == "f32" else 0.2)))
            artifacts = tuple(files.put(path, "report") for path in (file, traced))
            finish(store, replace(result_of(start(store, task)), artifacts=artifacts))
            tasks[precision] = task
    return tasks


STAGES = {
    name.value: [*(["quantize"] if name == Precision.FP8 else []), "export", "compile", "numerics"]
    for name in Precision
}


def test_two_programs_stand_side_by_side(answer: Answer, tasks: dict[str, str]) -> None:
    rows = json.loads(answer("numerics", "tiny-llama-FP32-TP1", tasks["f16"], "--json"))
    assert [(row["module"], row["phase"]) for row in rows[:4]] == [
        (f"model.layers.{layer}", phase) for layer in (0, 1) for phase in ("prefill", "decode")
    ]
    assert (rows[2]["error_1"], rows[2]["error_2"], rows[2]["drift_2"]) == (1e-7, 0.25, 0.5)
    assert (rows[4]["module"], rows[4]["rank"], rows[4]["error_1"]) == ("model.layers.1.self_attn.v_proj", 1, None)
    table = answer("numerics", "tiny-llama-FP32-TP1:cpu", "tiny-llama-FP16-TP1")
    assert "1: tiny-llama-FP32-TP1:cpu (f32, at most 0.0001): no layer is off" in table
    assert "2: tiny-llama-FP16-TP1 (f32, at most 0.0001): first off in model.layers.1.self_attn.v_proj" in table
    assert answer("numerics", tasks["f32"], "--csv").splitlines()[0] == "module,rank,phase,error,drift"


def test_what_cannot_be_compared_is_refused_with_the_reason(answer: Answer, tasks: dict[str, str]) -> None:
    assert "its layers are not known: no" in answer("numerics", tasks["bf16"], code=2)
    assert "compare two variants of one model" in answer("numerics", tasks["f32"], tasks["fp8"], code=2)
    assert "a job with `numerics: {where: layers}` makes them" in answer("numerics", "unknown", code=4)
    assert "at most two" in answer("numerics", *[tasks["f32"]] * 3, code=2)


def test_the_first_dispatch_that_differs_is_named(answer: Answer, tasks: dict[str, str]) -> None:
    sides = ("numerics", tasks["f32"], tasks["f16"], "--dispatches")
    rows = json.loads(answer(*sides, "--json"))
    assert [(row["call"], row["difference"]) for row in rows] == [(1, 0.0), (2, pytest.approx(0.1))]
    assert rows[1]["dispatch_2"] == "prefill_bs1_t16_dispatch_4_matmul_2x4"
    assert (
        "their logits differ by 0.2, at most 0.0001 is rounding; the first dispatch that differs is call 2, "
        "prefill_bs1_t16_dispatch_4_matmul_2x4: by 0.1"
    ) in answer(*sides)
    assert "return the same logits but for 0" in answer("numerics", tasks["f32"], tasks["f32"], "--dispatches")
    assert "compares two programs" in answer("numerics", tasks["f32"], "--dispatches", code=2)
    assert "a job with `numerics: {where: dispatches}` makes them" in answer(
        "numerics", "unknown", tasks["f32"], "--dispatches", code=4
    )
