"""Results are reused from earlier jobs, unless they were lost or something changed."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.models import SHIPPED
from tests.acceptance.conftest import Filled
from tests.acceptance.haloctl import Haloctl, opened
from tests.acceptance.job_specs import EVERYTHING, ONE_EXPORT, REPETITIONS

TP1, TP2 = "tiny-llama-FP16-TP1", "tiny-llama-FP16-TP2"
ON_CPU = {**EVERYTHING, "variants": {"precision": "f16", "tp": [1, 2], "target": "cpu"}}


@dataclass(frozen=True)
class Again:
    """A haloctl that did EVERYTHING, lost a parameter file and was given the same job again."""

    haloctl: Haloctl
    lost: dict[str, Any]
    tasks: dict[str, dict[str, Any]]
    cells: dict[str, dict[str, Any]]  #: the row of TP2


@pytest.fixture(scope="module")
def again(temporary: Path, filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Again]:
    """For reading only."""
    with opened(tmp_path_factory.mktemp("again"), temporary, filled.haloctl.data) as haloctl:
        lost = next(row for row in haloctl.json("artifacts", "--kind", "irpa") if row["subject"] == TP1)
        Path(lost["path"]).unlink()
        haloctl.answer("submit", haloctl.job(**ON_CPU), "--wait")
        job = haloctl.json("list", "--limit", "1")[0]["job"]
        (row,) = haloctl.json("matrix", job, "--variant", TP2)
        yield Again(haloctl, lost, haloctl.tasks(job), row["stages"])


def test_what_was_computed_is_taken_over_with_its_log_and_figures(again: Again, filled: Filled) -> None:
    earlier = filled.haloctl.tasks(filled.job)
    for stage in ("export", "compile", "invoke", "numerics"):
        name = f"{stage} {TP2}" + (" cpu" if stage != "export" else "")
        task = again.tasks[name]
        assert (task["state"], task["cached_from"], task["attempts"]) == ("cached", earlier[name]["task"], 0)
        assert again.haloctl.answer("logs", task["task"]) == filled.haloctl.answer("logs", earlier[name]["task"])
        assert again.cells[stage]["state"] == "cached"
    assert "perplexity" in {median["metric"] for median in again.cells["numerics"]["medians"]}


def test_what_is_measured_is_measured_again(again: Again) -> None:
    timed = [task for name, task in again.tasks.items() if name.startswith("benchmark")]
    assert [(task["state"], task["attempts"]) for task in timed] == [("succeeded", 1)] * 2
    rows = again.haloctl.json("results", "--metric", "itl_ms")
    assert len(rows) == 4  # two variants, each measured by both jobs
    assert all(len(row["samples"]) == REPETITIONS for row in rows)


def test_a_file_that_was_lost_is_made_again_and_what_followed_from_it_stays(again: Again) -> None:
    states = {name: task["state"] for name, task in again.tasks.items() if TP1 in name and "benchmark" not in name}
    assert states.pop(f"export {TP1}") == "succeeded"
    assert set(states.values()) == {"cached"}
    assert hashlib.sha256(Path(again.lost["path"]).read_bytes()).hexdigest() == again.lost["sha256"]
    why = again.haloctl.json("why", again.tasks[f"export {TP1}"]["task"])
    assert (why["reason"], why["changes"]) == ("files_lost", [])
    assert "some of its files were missing from the artifact store" in why["text"]


def test_changed_weights_make_another_model_of_it(fresh: Haloctl) -> None:
    folder = Path(shutil.copytree(SHIPPED / "tiny-llama", fresh.folder / "model"))
    digests = []
    for last_byte in (0, 1):
        weights = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([last_byte]))
        job = fresh.answer("submit", fresh.job(**{**ONE_EXPORT, "model": str(folder)})).strip()
        (task,) = fresh.tasks(job).values()
        digests.append(task["settings"]["model"]["digest"])
    assert digests[0] != digests[1]
