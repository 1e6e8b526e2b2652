"""Imported results in real databases: every reader finds them, nothing is made of them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from db.connection.engine import Database
from db.reads import audit, reports
from db.reads.artifact_refs import referenced
from db.reads.matrix import matrix
from db.reads.results import results
from db.reads.variant_files import variant_files
from db.store import Store
from db.writes.changes import changes
from db.writes.imports import ImportedCell, forget, import_cells
from jobs.errors import NothingToDo
from jobs.state import Failure, FailureKind, JobState
from jobs.task import Measurement
from orchestrator.imports.variant_names import parse_variant_name
from tests.stored_jobs import NOON, NUMBERS, VMFB, everything, submit, succeed

OOM = Failure(FailureKind.OUT_OF_MEMORY, "OOM", "issue: https://site/18864")


def cell(
    days: int, stage: str = "benchmark", name: str = "tiny-llama-FP16-TP1", failure: Failure | None = None
) -> ImportedCell:
    """Of a day so long after noon, with a TTFT of as many ms."""
    model, variant = parse_variant_name(name, "cpu")
    numbers = () if failure else (Measurement("ttft_ms", (float(100 + days),), {"batch": 1, "prompt_tokens": 64}),)
    at = NOON + timedelta(days=days)
    digest, links = f"{stage} {days} {name}", (("log", "http://x"),)
    return ImportedCell(model, variant, stage, at, digest, failure, numbers, links, 7)


def imported(database: Database, *cells: ImportedCell) -> tuple[str, ...]:
    return import_cells(database, cells, "page.md", "ada").jobs


def test_imported_results_are_read_like_those_that_ran_here(database: Database) -> None:
    job, later = imported(database, cell(1), cell(1, "invoke", failure=OOM), cell(2, "compile"))
    assert list(audit.violations(database)) == []
    (row,) = matrix(database)
    assert {stage: (found.state, found.imported_from) for stage, found in row.stages.items()} == {
        "compile": ("succeeded", "page.md"),
        "invoke": ("failed", "page.md"),
        "benchmark": ("succeeded", "page.md"),
    }
    assert row.stages["invoke"].failure == Failure(OOM.kind, OOM.message)
    found = results(database)
    assert [(one.job, one.median, one.measured_at) for one in found] == [
        (later, 102.0, NOON + timedelta(days=2)),
        (job, 101.0, NOON + timedelta(days=1)),
    ]
    assert found[0].context["imported_from"] == "page.md"
    listed = reports.jobs(database)
    assert [(one.id, one.state, one.imported_from) for one in listed] == [
        (later, JobState.SUCCEEDED, "page.md"),
        (job, JobState.FAILED, "page.md"),
    ]


def test_results_of_one_time_are_each_a_job(database: Database) -> None:
    """As when a file holds several and its user says when."""
    more = [replace(cell(1), digest=f"{number}") for number in range(3)]
    assert len(imported(database, cell(1, "invoke"), *more)) == 3
    assert len(results(database)) == 4
    assert list(audit.violations(database)) == []


def test_what_was_imported_is_not_imported_again(database: Database) -> None:
    (job,) = imported(database, cell(1), cell(1, "export"))
    before = everything(database)
    again = import_cells(database, [cell(1)], "renamed.md", "ada")
    assert (again.jobs, again.cells, again.known) == ((), 0, {job: 1})
    assert everything(database) == before
    grown = import_cells(database, [cell(1), cell(2)], "page.md", "ada")
    assert (len(grown.jobs), grown.cells, grown.known) == (1, 1, {job: 1})


def test_history_comes_before_what_ran_here_and_fresh_results_after_it(database: Database) -> None:
    noon = Store(database, lambda: NOON)
    succeed(noon, f"{submit(noon)}-01", measurements=NUMBERS[:1])
    own = results(database)[0].median
    imported(database, cell(-1), cell(2))
    imported(database, cell(-3), cell(-2))
    assert [one.median for one in results(database)] == [102.0, own, 99.0, 98.0, 97.0]
    assert matrix(database)[0].stages["export"].imported_from is None


def test_history_can_be_imported_before_the_first_own_result_and_again_after_it(clocked: Store) -> None:
    """Whatever numbers a database gives to what comes next: what is newest stays so."""
    database = clocked.database
    imported(database, cell(-3), cell(-2))
    for _ in range(2):
        succeed(clocked, f"{submit(clocked, stages=['export'])}-01")
    imported(database, cell(-5), cell(-4), cell(-1))
    imported(database, cell(-7), cell(-6))
    found = [one.median for one in results(database, metric="ttft_ms")]
    assert found[2:] == [99.0, 98.0, 97.0, 96.0, 95.0, 94.0, 93.0]
    assert found[:2] == [2.5, 2.5]


def test_an_older_imported_verdict_does_not_hide_a_newer_one(database: Database) -> None:
    noon = Store(database, lambda: NOON)
    job = submit(noon)
    succeed(noon, f"{job}-01")
    imported(database, cell(-1, "export", failure=OOM))
    assert matrix(database)[0].stages["export"].job == job
    (newer,) = imported(database, cell(1, "export", failure=OOM))
    assert matrix(database)[0].stages["export"].job == newer


def test_nothing_is_taken_over_from_what_was_imported_and_it_is_not_tried_again(
    database: Database, store: Store
) -> None:
    (job,) = imported(database, cell(1), cell(1, "invoke", failure=OOM))
    (attempt,) = reports.attempts(database, f"{job}-01")
    assert store.find_all_cached([attempt.digest.removeprefix("imported-"), "f" * 64]) == {}
    assert store.snapshot().tasks == ()
    with pytest.raises(NothingToDo, match="was imported"):
        store.retry(job)
    assert "durations" not in {name for name, rows in everything(database).items() if rows}


def test_what_was_imported_does_not_stand_for_files_that_were_made_here(database: Database) -> None:
    noon = Store(database, lambda: NOON)
    job = submit(noon)
    for task in (f"{job}-01", f"{job}-02"):
        succeed(noon, task)
    noon.request_cancel(job)
    imported(database, cell(1, "export"), cell(1, "compile"))
    (found,) = variant_files(database, "tiny-llama")
    assert found.job == job
    assert VMFB.sha256 in referenced(database, NOON + timedelta(days=9)).digests


def test_an_imported_job_can_be_forgotten_and_no_other(database: Database, store: Store) -> None:
    mine = submit(store)
    before = everything(database)
    (job,) = imported(database, cell(1), cell(1, "invoke", failure=OOM))
    assert forget(database, job[:6]) == job
    assert [change.action for change in changes(database)] == ["import", "remove import"]
    assert everything(database) | {"changes": []} == before
    with pytest.raises(NothingToDo, match="was not imported"):
        forget(database, mine)
    assert imported(database, cell(1))
