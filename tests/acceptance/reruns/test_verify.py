"""Tasks that are run again where they ran, and whether their results agree."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Filled
from tests.acceptance.haloctl import Haloctl, opened
from tests.acceptance.job_specs import REPETITIONS

TP1 = "tiny-llama-FP16-TP1"


@pytest.fixture(scope="module")
def haloctl(temporary: Path, filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Haloctl]:
    with opened(tmp_path_factory.mktemp("verify"), temporary, filled.haloctl.data) as haloctl:
        yield haloctl


def ran(filled: Filled, name: str) -> str:
    """The task of everything that has this stage and subject."""
    task: str = filled.haloctl.tasks(filled.job)[name]["task"]
    return task


def rewrite(haloctl: Haloctl, statement: str, *values: Any) -> None:
    """Change a stored value in the database."""
    with closing(sqlite3.connect(haloctl.data / "haloctl.db")) as connection, connection:
        assert connection.execute(statement, values).rowcount


def test_the_same_numerics_come_out_again(haloctl: Haloctl, filled: Filled) -> None:
    task = ran(filled, f"numerics {TP1} cpu")
    verification = haloctl.json("verify", f"{task}-1")
    assert (verification["agrees"], verification["changes"]) == (True, [])
    figures = {row["metric"]: row for row in verification["metrics"]}
    assert figures["perplexity"]["finding"] == "agrees"
    assert figures["perplexity"]["old"] == pytest.approx(figures["perplexity"]["new"])
    job = haloctl.json("list", "--limit", "1")[0]
    assert (job["name"], job["state"]) == (f"verify {task}", "succeeded")
    states = {row["stage"]: row["state"] for row in haloctl.json("show", job["job"])["tasks"]}
    assert states == {"export": "cached", "compile": "cached", "numerics": "succeeded"}


def test_what_was_ten_times_as_fast_does_not_agree(haloctl: Haloctl, filled: Filled) -> None:
    """The report for people says so too; the new samples are results like all others."""
    task = ran(filled, f"benchmark {TP1} cpu")
    samples = [1e-3] * REPETITIONS
    rewrite(
        haloctl,
        "UPDATE measurements SET samples = ?, median = ? WHERE attempt = ? AND metric = 'ttft_ms'",
        *(json.dumps(samples), samples[0], f"{task}-1"),
    )
    done = haloctl.run("verify", task)
    assert done.code == 3, done.err
    assert "ttft_ms slower" in done.err
    assert "agrees:" not in done.out
    job = haloctl.json("list", "--limit", "1")[0]["job"]
    (row,) = haloctl.json("results", "--job", job, "--metric", "ttft_ms")
    assert len(row["samples"]) == REPETITIONS
    assert row["median"] > 1e-3


def test_a_node_that_is_gone_is_waited_for_and_named(haloctl: Haloctl, filled: Filled) -> None:
    task = ran(filled, f"compile {TP1} cpu")
    rewrite(haloctl, "UPDATE attempts SET node = 'gone' WHERE id = ?", f"{task}-1")
    done = haloctl.run("verify", task)
    assert done.code == 5, done.err
    assert "is pinned to node gone" in done.err
    again = haloctl.run("verify", task)
    assert again.code == 5
    assert sum(job["name"] == f"verify {task}" for job in haloctl.json("list")) == 1


def test_another_toolchain_and_a_failure_are_nothing_to_agree_with(haloctl: Haloctl, filled: Filled) -> None:
    """The refusal comes before anything is submitted."""
    compiled, exported = (ran(filled, name) for name in (f"invoke {TP1} cpu", f"export {TP1}"))
    rewrite(
        haloctl, "UPDATE attempts SET versions = json_set(versions, '$.torch', '1.0') WHERE id = ?", f"{compiled}-1"
    )
    rewrite(haloctl, "UPDATE attempts SET outcome = 'failed' WHERE id = ?", f"{exported}-1")
    jobs = len(haloctl.json("list"))
    other, failed = haloctl.run("verify", compiled), haloctl.run("verify", exported)
    assert (other.code, failed.code) == (5, 5)
    assert "torch 1.0, now" in other.err
    assert f"haloctl reproduce {compiled}-1" in other.err
    assert "did not succeed" in failed.err
    assert len(haloctl.json("list")) == jobs
