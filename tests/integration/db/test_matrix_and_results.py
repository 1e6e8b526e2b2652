"""The matrix, the results and the artifacts, as real databases answer them."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from db.connection.engine import Database
from db.reads import reports
from db.reads.matrix import CellRow, Median, matrix
from db.reads.results import artifacts, results
from db.store import CacheHit, Store, Submission
from jobs.plan import Plan, plan
from jobs.state import Failure
from jobs.task import Artifact, Measurement
from tests.stored_jobs import BROKEN, DIGEST, LOST, NOON, NUMBERS, TINY, VMFB, fail, spec_of, submit, succeed

TWO_TARGETS: dict[str, Any] = {"variants": {"tp": [1, 2], "target": ["cpu", "mi300x"]}, "stages": ["export", "compile"]}


def tasks_of(database: Database, job: str, stage: str) -> list[str]:
    return [task.id for task in reports.tasks(database, job) if task.stage == stage]


def ttft(*samples_ms: float, batch: int = 1) -> Measurement:
    return Measurement("ttft_ms", samples_ms, {"batch": batch, "prompt_tokens": 64})


def test_a_jobs_matrix_has_a_row_a_variant_and_target_in_the_order_of_the_plan(
    database: Database, clocked: Store
) -> None:
    job = submit(clocked, **TWO_TARGETS)
    export_tp1 = tasks_of(database, job, "export")[0]
    succeed(clocked, export_tp1)
    rows = matrix(database, job=job[:6])
    assert [(row.variant, row.target, row.tp) for row in rows] == [
        ("tiny-llama-FP16-TP1", "cpu", 1),
        ("tiny-llama-FP16-TP2", "cpu", 2),
        ("tiny-llama-FP16-TP1", "mi300x", 1),
        ("tiny-llama-FP16-TP2", "mi300x", 2),
    ]
    assert all(list(row.stages) == ["export", "compile"] for row in rows)
    shared = [row.stages["export"].task for row in rows if row.tp == 1]
    assert shared == [export_tp1, export_tp1]
    cell = rows[0].stages["export"]
    assert (cell.state, cell.warnings) == ("succeeded", ("no v_mfma in decode",))
    assert cell.metrics == (Median("ttft_ms", "ms", 2.5, 1, 64), Median("compile_s", "s", 12.0, None, None))
    assert (rows[0].stages["compile"].state, rows[0].stages["compile"].metrics) == ("pending", ())


def test_rows_and_results_say_the_engine_and_its_nodes(database: Database, store: Store) -> None:
    variants = {"engine": ["iree", "torch"], "nodes": [1, 2], "tp": 2, "exclude": [{"engine": "iree", "nodes": 2}]}
    job = submit(store, variants=variants, stages=["export", "compile", "benchmark"])
    wanted = [("iree", 1), ("torch", 1), ("torch", 2)]
    for rows in (matrix(database, job=job), matrix(database)):
        assert [(row.engine, row.nodes) for row in rows] == wanted
        assert [list(row.stages) for row in rows] == [["export", "compile", "benchmark"], ["benchmark"], ["benchmark"]]
    for task in tasks_of(database, job, "benchmark"):
        succeed(store, task, measurements=[ttft(1.0)])
    assert sorted((row.engine, row.nodes) for row in results(database)) == wanted


def test_a_cell_says_why_it_is_not_green(database: Database, clocked: Store) -> None:
    job = submit(clocked)
    fail(clocked, f"{job}-01")
    clocked.block({f"{job}-02": "export failed"})
    clocked.set_wait_reasons({f"{job}-03": ("needs 8 x mi300x; the cluster has none", True)})
    (row,) = matrix(database, job=job)
    failed, blocked, waiting = (row.stages[stage] for stage in ("export", "compile", "invoke"))
    assert failed.failure == Failure(BROKEN.kind, BROKEN.message)
    assert blocked.blocked_by == "export failed"
    assert (waiting.waits_for, waiting.is_unschedulable) == ("needs 8 x mi300x; the cluster has none", True)


def test_a_queued_task_that_is_tried_again_is_no_failed_cell(database: Database, store: Store) -> None:
    job = submit(store)
    fail(store, f"{job}-01", LOST)
    (row,) = matrix(database, job=job)
    assert (row.stages["export"].state, row.stages["export"].failure) == ("queued", None)
    assert reports.task(database, f"{job}-01").failure == LOST


def test_over_all_jobs_each_cell_shows_the_newest_verdict(database: Database, clocked: Store) -> None:
    def cell(stage: str) -> CellRow:
        (row,) = matrix(database)
        return row.stages[stage]

    first = submit(clocked)
    succeed(clocked, f"{first}-01", measurements=[ttft(1.0)])
    assert (cell("export").job, cell("compile").job) == (first, first)
    second = submit(clocked)
    assert (cell("export").job, cell("export").state) == (first, "succeeded")  # the second has no verdict yet
    assert (cell("compile").job, cell("compile").state) == (second, "pending")  # none has
    fail(clocked, f"{second}-01")
    assert (cell("export").job, cell("export").state) == (second, "failed")
    third = submit(clocked)
    clocked.request_cancel(third)
    assert cell("export").job == second
    clocked.retry(second)
    succeed(clocked, f"{second}-01", measurements=[ttft(2.0)])
    assert [median.median for median in cell("export").metrics] == [2.0]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({}, 4),
        ({"target": "cpu"}, 2),
        ({"target": "mi*"}, 2),
        ({"variant": "tiny-llama-FP16-TP1"}, 2),
        ({"variant": "tiny-llama-FP16-TP"}, 0),
        ({"variant": "*-TP[2-8]"}, 2),
        ({"variant": "*-tp2"}, 0),
        ({"variant": "%"}, 0),
        ({"model": "tiny-llama", "variant": "*TP?", "target": "cpu"}, 2),
        ({"model": "llama*"}, 0),
    ],
)
def test_the_matrix_is_filtered_by_names_and_patterns(
    database: Database, store: Store, filters: dict[str, Any], count: int
) -> None:
    job = submit(store, **TWO_TARGETS)
    assert len(matrix(database, **filters)) == count
    assert len(matrix(database, job=job, **filters)) == count


def test_a_cached_cell_shows_the_earlier_tasks_numbers(database: Database, store: Store) -> None:
    earlier, job = submit(store), submit(store)
    succeed(store, f"{earlier}-01", measurements=[ttft(1.0, 2.0, 4.0)])
    store.queue([f"{job}-01"])
    store.record_cache_hits([CacheHit(f"{job}-01", DIGEST, f"{earlier}-01")])
    cell = matrix(database, job=job)[0].stages["export"]
    assert (cell.state, cell.cached_from) == ("cached", f"{earlier}-01")
    assert cell.metrics == (Median("ttft_ms", "ms", 2.0, 1, 64),)
    (taken_over,) = results(database, job=job)
    assert (taken_over.job, taken_over.task, taken_over.attempt) == (job, f"{job}-01", f"{earlier}-01-1")
    assert [row.job for row in results(database)] == [earlier]
    assert [row.name for row in artifacts(database, job=job)] == ["log", "model.vmfb"]
    assert len(artifacts(database)) == 2


def test_a_result_has_its_samples_unit_and_everything_it_was_measured_under(database: Database, clocked: Store) -> None:
    job = submit(clocked, variants={"tp": 2, "attention": "eager"})
    task = f"{job}-02"
    succeed(clocked, task)
    compile_s, row = results(database)
    assert (row.job, row.task, row.attempt, row.stage) == (job, task, f"{task}-1", "compile")
    assert (row.model, row.variant, row.target) == ("tiny-llama", "tiny-llama-FP16-decomposed-TP2", "cpu")
    assert (row.precision, row.attention, row.tp, row.engine, row.nodes) == ("f16", "eager", 2, "iree", 1)
    assert (row.metric, row.unit, row.median, row.samples) == ("ttft_ms", "ms", 2.5, (3.0, 1.0, 2.5))
    assert (row.batch, row.prompt_tokens, row.context) == (1, 64, NUMBERS[0].context)
    assert (row.node, row.toolchain, row.versions) == ("a", "default", {"torch": "2.13.1"})
    assert [(device.kind, device.index, device.serial) for device in row.devices] == [
        ("cpu", 0, "s0"),
        ("cpu", 1, "s1"),
    ]
    assert row.measured_at == reports.task(database, task).ended_at
    assert (compile_s.metric, compile_s.unit, compile_s.batch) == ("compile_s", "s", None)


def test_what_serves_several_targets_counts_once_for_each_variant(database: Database, store: Store) -> None:
    job = submit(store, **TWO_TARGETS)
    export = tasks_of(database, job, "export")[1]
    succeed(store, export, measurements=[Measurement("trace_s", (7.0,))])
    (row,) = results(database)
    assert (row.variant, row.target) == ("tiny-llama-FP16-TP2", "")
    assert results(database, target="cpu") == []
    compiled = [task.id for task in reports.tasks(database, job) if (task.stage, task.target) == ("compile", "mi300x")]
    for task in compiled:
        succeed(store, task, measurements=[Measurement("compile_s", (1.0,))])
    assert {row.variant for row in results(database, target="mi300x")} == {"tiny-llama-FP16-TP1", "tiny-llama-FP16-TP2"}
    assert len(results(database)) == 3


def test_one_task_that_stands_for_two_variants_counts_for_both(database: Database, store: Store) -> None:
    made = plan(spec_of(variants={"tp": [1, 2]}, stages=["export"]), TINY)
    shared = Plan(made.variants, (replace(made.tasks[0], variants=made.variants),))
    job = store.submit(
        Submission(plan=shared, name="x", spec={}, model=TINY, submitted_by="ada", timeout_s=1, reuse=True)
    )
    succeed(store, f"{job}-01", measurements=[Measurement("trace_s", (7.0,))])
    assert [row.variant for row in results(database)] == ["tiny-llama-FP16-TP1", "tiny-llama-FP16-TP2"]
    assert [row.stages["export"].metrics[0].median for row in matrix(database)] == [7.0, 7.0]
    assert len(artifacts(database, variant="*TP2")) == 2


Filtered = Callable[[Database, str, str], int]


@pytest.mark.parametrize(
    ("count", "filtered"),
    [
        (3, lambda database, first, second: len(results(database))),
        (1, lambda database, first, second: len(results(database, job=first))),
        (2, lambda database, first, second: len(results(database, job=second[:7]))),
        (2, lambda database, first, second: len(results(database, metric="ttft_ms"))),
        (1, lambda database, first, second: len(results(database, metric="*_s"))),
        (3, lambda database, first, second: len(results(database, model="tiny-*", variant="*TP1", target="cpu"))),
        (0, lambda database, first, second: len(results(database, target="mi300x"))),
        (2, lambda database, first, second: len(results(database, since=NOON + timedelta(minutes=6)))),
        (0, lambda database, first, second: len(results(database, since=NOON + timedelta(hours=5)))),
        (2, lambda database, first, second: len(results(database, limit=2))),
        (4, lambda database, first, second: len(artifacts(database))),
        (2, lambda database, first, second: len(artifacts(database, job=first))),
        (2, lambda database, first, second: len(artifacts(database, kind="vmfb"))),
        (1, lambda database, first, second: len(artifacts(database, kind="l*", job=second, target="cpu"))),
        (0, lambda database, first, second: len(artifacts(database, model="other"))),
        (0, lambda database, first, second: len(artifacts(database, variant="*TP8"))),
        (3, lambda database, first, second: len(artifacts(database, limit=3))),
    ],
)
def test_results_and_artifacts_are_filtered(database: Database, clocked: Store, count: int, filtered: Filtered) -> None:
    first, second = submit(clocked), submit(clocked)
    succeed(clocked, f"{first}-02", measurements=[ttft(1.0)])
    succeed(clocked, f"{second}-02")
    assert filtered(database, first, second) == count


def test_results_come_newest_first_with_their_files_sizes_kept(database: Database, clocked: Store) -> None:
    job = submit(clocked)
    for number, sample in ((1, 1.0), (2, 2.0)):
        succeed(clocked, f"{job}-0{number}", measurements=[ttft(sample)])
    assert [row.median for row in results(database)] == [2.0, 1.0]
    made = artifacts(database)
    assert [(row.task, row.name) for row in made[:2]] == [(f"{job}-02", "log"), (f"{job}-02", "model.vmfb")]
    assert Artifact(made[1].name, made[1].kind, made[1].sha256, made[1].size_bytes) == VMFB
