"""After one `submit --wait` of every stage, every command that asks about it answers."""

import csv
import hashlib
import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.acceptance.conftest import Filled
from tests.acceptance.job_specs import EVERYTHING, PROMPT_TOKENS

STAGES = ["export", "compile", "invoke", "numerics", "benchmark"]
TP1, TP2 = "tiny-llama-FP16-TP1", "tiny-llama-FP16-TP2"
CELL_KEYS = {
    *("job", "task", "state", "failure", "waits_for", "is_unschedulable", "blocked_by", "cached_from", "warnings"),
    "medians",
    "imported_from",
}

Row = dict[str, Any]


@pytest.fixture(scope="session")
def matrix(filled: Filled) -> dict[tuple[str, str], dict[str, Row]]:
    """The stages of each row of the matrix."""
    return {(row["variant"], row["target"]): row["stages"] for row in filled.haloctl.json("matrix", filled.job)}


@pytest.fixture(scope="session")
def tasks(filled: Filled) -> dict[str, Row]:
    return filled.haloctl.tasks(filled.job)


@pytest.fixture(scope="session")
def attempts(filled: Filled, tasks: dict[str, Row]) -> dict[str, Row]:
    """The one attempt of each task that ran for TP2, by task."""
    ids = [task["task"] for task in tasks.values() if TP2 in task["subject"] and task["attempts"]]
    by_task = {task: filled.haloctl.json("show", task)["attempts"] for task in ids}
    assert [len(rows) for rows in by_task.values()] == [1] * 6
    return {task: attempt for task, (attempt,) in by_task.items()}


def test_submit_ends_well_and_leaves_no_process_and_no_working_folder(filled: Filled) -> None:
    assert filled.done.code == 0, filled.done.err
    assert filled.left == []
    assert list((filled.haloctl.data / "work").iterdir()) == []


def test_submit_answers_with_the_matrix_and_says_what_waits(filled: Filled) -> None:
    assert filled.done.out == filled.haloctl.answer("matrix", filled.job)
    last = filled.done.err.splitlines()[-1]
    assert f"job {filled.job}: 6 tasks wait for resources that the cluster lacks" in last
    for tp in (1, 2):
        assert f"needs {tp} x mi300x; the cluster has none" in filled.done.err


def test_submit_tells_of_every_task_that_started_and_ended(filled: Filled) -> None:
    lines = filled.done.err.splitlines()
    assert sum(line.startswith("running ") for line in lines) == 12
    assert sum(line.startswith("succeeded ") for line in lines) == 12


@pytest.mark.parametrize("variant", [TP1, TP2])
@pytest.mark.parametrize("stage", STAGES)
def test_every_cell_of_the_cpu_passes(matrix: dict[tuple[str, str], dict[str, Row]], variant: str, stage: str) -> None:
    cell = matrix[variant, "cpu"][stage]
    assert (cell["state"], cell["failure"], cell["is_unschedulable"]) == ("succeeded", None, False)


@pytest.mark.parametrize("variant", [TP1, TP2])
def test_mi300x_is_compiled_with_matrix_instructions(
    matrix: dict[tuple[str, str], dict[str, Row]], variant: str
) -> None:
    cells = matrix[variant, "mi300x"]
    assert [cells[stage]["state"] for stage in ("export", "compile")] == ["succeeded", "succeeded"]
    assert medians(cells["compile"])["mfma_prefill"] > 0
    assert cells["compile"]["warnings"] == []


@pytest.mark.parametrize(("variant", "tp"), [(TP1, 1), (TP2, 2)])
@pytest.mark.parametrize("stage", ["invoke", "numerics", "benchmark"])
def test_what_needs_mi300x_waits_and_says_for_what(
    matrix: dict[tuple[str, str], dict[str, Row]], tasks: dict[str, Row], variant: str, tp: int, stage: str
) -> None:
    cell, task = matrix[variant, "mi300x"][stage], tasks[f"{stage} {variant} mi300x"]
    for row in (cell, task):
        assert row["is_unschedulable"]
        assert row["state"] in ("pending", "queued")
        assert f"needs {tp} x mi300x; the cluster has none" in row["waits_for"]
    assert task["attempts"] == 0


def test_show_tells_people_what_waits(filled: Filled) -> None:
    lines = filled.haloctl.answer("show", filled.job).splitlines()
    assert "waiting, 12 of 18 tasks done" in lines
    waiting = [line for line in lines if "  unschedulable  " in line]
    assert len(waiting) == 6
    assert all("mi300x; the cluster has none" in line for line in waiting)


def test_the_matrix_tells_people_verdicts_figures_and_waits(filled: Filled) -> None:
    text = filled.haloctl.answer("matrix")
    rows = {tuple(line.split()[:2]): line for line in text.splitlines() if line.startswith("tiny-llama")}
    assert sorted(rows) == [(TP1, "cpu"), (TP1, "mi300x"), (TP2, "cpu"), (TP2, "mi300x")]
    for word in ("ppl", "TTFT", "ITL"):
        assert word in rows[TP2, "cpu"]
    assert rows[TP2, "cpu"].count("PASS") == 5
    assert "MFMA" in rows[TP2, "mi300x"]
    assert (rows[TP2, "mi300x"].count("PASS"), rows[TP2, "mi300x"].count("unschedulable")) == (2, 3)
    assert f"needs 2 x mi300x; the cluster has none: {TP2} mi300x (invocation, numerics, benchmark)" in text


def test_the_matrix_for_programs_has_a_verdict_for_each_stage(filled: Filled) -> None:
    rows = filled.haloctl.json("matrix")
    assert [(row["model"], row["precision"], row["attention"]) for row in rows] == [("tiny-llama", "f16", "sdpa")] * 4
    for row in rows:
        assert list(row["stages"]) == STAGES
        assert all(set(cell) == CELL_KEYS for cell in row["stages"].values())
        assert all(cell["job"] == filled.job for cell in row["stages"].values())


@pytest.mark.parametrize("variant", [TP1, TP2])
def test_the_matrix_for_programs_has_the_medians_of_benchmarks(
    matrix: dict[tuple[str, str], dict[str, Row]], variant: str
) -> None:
    cell = matrix[variant, "cpu"]["benchmark"]
    timed = {median["metric"]: median for median in cell["medians"]}
    for metric in ("ttft_ms", "itl_ms"):
        assert timed[metric]["median"] > 0
        assert (timed[metric]["unit"], timed[metric]["batch"], timed[metric]["prompt_tokens"]) == (
            "ms",
            1,
            PROMPT_TOKENS,
        )


def test_the_matrix_can_be_filtered_and_read_as_csv(filled: Filled) -> None:
    rows = list(csv.DictReader(io.StringIO(filled.haloctl.answer("matrix", "--variant", "*-TP2", "--csv"))))
    assert [(row["variant"], row["target"]) for row in rows] == [(TP2, "cpu"), (TP2, "mi300x")]
    assert rows[0]["invocation"] == "PASS"


def test_the_matrix_comes_in_the_same_forms_as_results(filled: Filled, tmp_path: Path) -> None:
    file = tmp_path / "matrix.parquet"
    done = filled.haloctl.run("matrix", "--parquet", str(file))
    assert (done.code, done.out, done.err) == (0, "", f"4 rows written to {file}\n")
    rows = list(csv.DictReader(io.StringIO(filled.haloctl.answer("matrix", "--csv"))))
    assert parquet.read_table(file).to_pylist() == rows
    done = filled.haloctl.run("matrix", "--parquet", str(file), "--svg", str(tmp_path / "matrix.svg"))
    assert (done.code, "--parquet --svg: choose one output format" in done.err) == (2, True)
    assert "| variant " in filled.haloctl.answer("matrix", "--markdown")


def test_one_export_serves_both_targets(matrix: dict[tuple[str, str], dict[str, Row]], tasks: dict[str, Row]) -> None:
    assert [name for name in tasks if name.startswith("export")] == [f"export {TP1}", f"export {TP2}"]
    for variant in (TP1, TP2):
        assert matrix[variant, "cpu"]["export"]["task"] == matrix[variant, "mi300x"]["export"]["task"]


def test_artifacts_lie_where_they_say_and_are_what_their_names_say(filled: Filled) -> None:
    rows = filled.haloctl.json("artifacts", filled.job)
    assert {row["kind"] for row in rows} == {"mlir", "irpa", "config", "vmfb", "dump", "report", "log"}
    for row in rows:
        content = Path(row["path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row["sha256"]
        assert len(content) == row["size_bytes"]


def test_artifacts_are_one_parameter_file_for_each_rank_and_one_module_for_each_target(filled: Filled) -> None:
    irpa = [(row["subject"], row["name"]) for row in filled.haloctl.json("artifacts", "--kind", "irpa")]
    assert sorted(irpa) == [(TP1, "model.rank0.irpa"), (TP2, "model.rank0.irpa"), (TP2, "model.rank1.irpa")]
    vmfb = [row["subject"] for row in filled.haloctl.json("artifacts", "--kind", "vmfb")]
    assert sorted(vmfb) == [f"{variant} {target}" for variant in (TP1, TP2) for target in ("cpu", "mi300x")]


def test_logs_begin_with_the_command_that_ran(filled: Filled, attempts: dict[str, Row]) -> None:
    for task, attempt in attempts.items():
        first = filled.haloctl.answer("logs", task).splitlines()[0]
        assert first.startswith("$ ")
        ran, planned = shlex.split(first)[1:], attempt["commands"][0]
        assert Path(ran[0]).name.startswith(planned[0])
        assert ran[1:] == planned[1:] == attempt["processes"][0]["argv"][1:]


def test_show_tells_of_a_task_its_attempt_commands_and_files(filled: Filled, tasks: dict[str, Row]) -> None:
    task = tasks[f"compile {TP2} mi300x"]["task"]
    text = filled.haloctl.answer("show", task)
    assert f"attempt {task}-1 on local: succeeded" in text
    assert "$ iree-compile inputs/export/model.mlir" in text
    assert "--iree-hal-target-device=hip[1]" in text
    assert "model.vmfb" in text


def test_a_dry_run_prints_the_commands_that_then_run(
    filled: Filled, tasks: dict[str, Row], attempts: dict[str, Row]
) -> None:
    planned = filled.haloctl.json("submit", filled.haloctl.job(**EVERYTHING), "--dry-run")["tasks"]
    assert [task["stage"] for task in planned] == [task["stage"] for task in tasks.values()]
    commands = {stored["task"]: task["commands"] for task, stored in zip(planned, tasks.values(), strict=True)}
    for task, attempt in attempts.items():
        assert attempt["commands"] == commands[task]
    assert len(filled.haloctl.json("list")) == 1


def test_a_benchmark_on_each_device_is_planned_for_every_one_of_them(filled: Filled) -> None:
    job = filled.haloctl.job(**EVERYTHING | {"variants": {"tp": [1, 2], "exclude": [{"tp": 2}]}})
    planned = filled.haloctl.json("submit", job, "--devices", "each", "--dry-run")["tasks"]
    pins = [task["pin"] for task in planned if task["stage"] == "benchmark"]
    assert [pin["devices"] for pin in pins] == [[index] for index in range(8)]
    assert {task["pin"] is None for task in planned if task["stage"] != "benchmark"} == {True}


def test_a_benchmark_on_each_node_is_refused_where_no_node_could_take_it(filled: Filled) -> None:
    done = filled.haloctl.run("submit", filled.haloctl.job(**EVERYTHING), "--nodes", "each")
    assert (done.code, done.out) == (2, "")
    assert "haloctl: --nodes each: no node that is up has 1 x mi300x" in done.err
    both = filled.haloctl.run("submit", filled.haloctl.job(**EVERYTHING), "--nodes", "each", "--devices", "each")
    assert (both.code, "choose one" in both.err) == (2, True)


def test_list_tells_of_the_job(filled: Filled) -> None:
    job = filled.haloctl.only_job()
    assert job | {"job": filled.job, "state": "waiting", "done": 12, "tasks": 18, "unschedulable": 6} == job
    (row,) = csv.DictReader(io.StringIO(filled.haloctl.answer("list", "--csv")))
    assert (row["job"], row["name"], row["state"]) == (filled.job, EVERYTHING["name"], "waiting")


def test_an_id_may_be_given_by_its_start(filled: Filled) -> None:
    assert filled.haloctl.json("show", filled.job[:4])["job"] == filled.job


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("logs", f"invoke {TP1} mi300x"), "has not run"),
        (("cancel", f"invoke {TP1} cpu"), "has ended"),
        (("retry", f"invoke {TP1} cpu"), ""),
    ],
)
def test_what_does_not_fit_a_task_s_state_is_a_conflict(
    filled: Filled, tasks: dict[str, Row], command: tuple[str, str], message: str
) -> None:
    done = filled.haloctl.run(command[0], tasks[command[1]]["task"])
    assert done.code == 5
    assert message in done.err
    assert done.out == ""


def medians(cell: Row) -> dict[str, float]:
    return {row["metric"]: row["median"] for row in cell["medians"]}
