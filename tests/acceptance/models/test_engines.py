"""Two engines in one job: the same model in the same matrix."""

import json

from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import EVERYTHING, REPETITIONS

ENGINES = {**EVERYTHING, "name": "engines", "benchmark": {**EVERYTHING["benchmark"], "generations": 1}}
ENGINES["variants"] = {"precision": "f16", "tp": 2, "target": "cpu", "engine": ["iree", "torch"]}
DASH = "\N{EN DASH}"


def test_both_engines_are_timed_and_checked_side_by_side(copied: Haloctl) -> None:
    """The exports and programs of engine iree are cache hits of the job before."""
    done = copied.run("submit", copied.job(**ENGINES), "--wait")
    assert done.code == 0, done.err
    job = next(job["job"] for job in copied.json("list") if job["name"] == "engines")
    compiled, ranks = copied.json("matrix", job)
    assert [(row["engine"], row["nodes"]) for row in (compiled, ranks)] == [("iree", 1), ("torch", 1)]
    assert list(ranks["stages"]) == ["numerics", "benchmark"]
    assert [cell["state"] for cell in ranks["stages"].values()] == ["succeeded", "succeeded"]
    (shown,) = (line for line in done.out.splitlines() if line.startswith("tiny-llama-FP16-TP2-torch"))
    assert shown.split()[1:7] == ["cpu", DASH, DASH, DASH, "PASS", "ppl"]
    assert "PASS TTFT" in shown
    for metric in ("ttft_ms", "itl_ms"):
        timed = json.loads(copied.answer("results", "--job", job, "--metric", metric, "--json"))
        assert {(row["engine"], len(row["samples"])) for row in timed} == {
            ("iree", REPETITIONS),
            ("torch", REPETITIONS),
        }
        assert all(row["context"]["machine"]["own_cpu_s"] > 0 for row in timed)
        assert {row["engine"] for row in timed if "vmfb" in row["context"]} == {"iree"}
    whole = json.loads(copied.answer("results", "--job", job, "--metric", "e2e_ms", "--json"))
    assert {(row["engine"], len(row["samples"])) for row in whole} == {("iree", 1), ("torch", REPETITIONS)}
    sides = [f"engine:{engine},job:{job}" for engine in ("iree", "torch")]
    compared = json.loads(copied.answer("compare", *sides, "--json"))
    assert {"ttft_ms", "itl_ms", "e2e_ms"} <= {row["metric"] for row in compared}
