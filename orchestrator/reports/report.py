"""The content of a status report, read from the database."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from db.connection.engine import Database
from db.reads.matrix import CellRow, MatrixRow, matrix
from db.reads.report_times import artifacts_of, last_report, log_tails
from db.reads.run_filter import RunFilter
from db.reads.runs import MeasuredRun, runs
from db.writes.targets import QuotedTarget, quoted_targets
from jobs.artifact_kinds import reported_kinds
from jobs.stages import STAGES
from jobs.task import Artifact
from orchestrator.reports.changes import MetricShift, VerdictChange, metric_shifts, verdict_changes
from orchestrator.views.pivots import TRACKED, Pivot, pivot, split_disturbed

FIRST_PERIOD = timedelta(days=7)  #: that the first report covers
MAX_DATES = 6
MAX_RUNS = 20_000
MAX_FAILURES = 30
TAIL_LINES = 20


@dataclass(frozen=True)
class ReportFilters:
    """What a report is limited to; None: everything."""

    model: str | None = None
    variant: str | None = None
    target: str | None = None

    @property
    def text(self) -> str:
        """The filters in words; empty: none."""
        return ", ".join(f"{name} {value}" for name, value in vars(self).items() if value)


@dataclass(frozen=True)
class FailedTask:
    """A failed task, with the rows of the matrix that it is in."""

    task: str
    stage: str
    kind: str
    message: str
    log_tail: str
    since: datetime | None
    variants: tuple[str, ...]


@dataclass(frozen=True)
class ReportedArtifact:
    """An artifact of a row of the matrix."""

    variant: str
    target: str
    task: str
    file: Artifact


@dataclass(frozen=True)
class StatusReport:
    """The content of a page."""

    at: datetime
    since: datetime
    is_first: bool
    filters: ReportFilters
    rows: Sequence[MatrixRow]
    benchmark: Pivot
    runs: Sequence[MeasuredRun]
    quoted: Sequence[QuotedTarget]
    changed: Sequence[VerdictChange]
    shifted: Sequence[MetricShift]
    files: Sequence[ReportedArtifact]
    failures: Sequence[FailedTask]
    failures_left_out: int = 0
    disturbed: int = 0  #: number of disturbed measurements, which are not in `runs`
    files_at: dict[str, str] = field(default_factory=dict)  #: by sha256, where one can be fetched by a browser


def collect_report(database: Database, at: datetime, since: datetime | None, filters: ReportFilters) -> StatusReport:
    """Read the content; without `since`, changes are those since the last report."""
    last = since or last_report(database)
    begin = last or at - FIRST_PERIOD
    rows = matrix(database, **vars(filters))
    run_filter = RunFilter(TRACKED, disturbed=True, **vars(filters))
    undisturbed, disturbed = split_disturbed(runs(database, run_filter, most=MAX_RUNS))
    quoted = quoted_targets(database)
    failed = list(_failed(rows))
    return StatusReport(
        at=at,
        since=begin,
        is_first=last is None,
        filters=filters,
        rows=rows,
        benchmark=pivot(undisturbed, "date", quoted, MAX_DATES),
        runs=undisturbed,
        quoted=quoted,
        changed=verdict_changes(matrix(database, before=begin, **vars(filters)), rows),
        shifted=metric_shifts(undisturbed, begin),
        files=_files(database, rows),
        failures=_failures(database, failed[:MAX_FAILURES]),
        failures_left_out=max(len(failed) - MAX_FAILURES, 0),
        disturbed=disturbed,
    )


FailedCell = tuple[str, CellRow, tuple[str, ...]]  #: stage, cell, and the rows of the matrix that its task is in


def _failed(rows: Iterable[MatrixRow]) -> Iterable[FailedCell]:
    """Return failed tasks once each, the newest first."""
    failed: dict[str, FailedCell] = {}
    for row in rows:
        for stage, cell in row.stages.items():
            if cell.failure:
                variants = failed[cell.task][2] if cell.task in failed else ()
                failed[cell.task] = (stage, cell, (*variants, f"{row.variant} {row.target}"))
    return sorted(failed.values(), key=_ended_at, reverse=True)


def _ended_at(failed: FailedCell) -> float:
    ended_at = failed[1].ended_at
    return ended_at.timestamp() if ended_at else 0.0


def _failures(database: Database, failed: Sequence[FailedCell]) -> list[FailedTask]:
    tails = log_tails(database, [cell.attempt for _, cell, _ in failed if cell.attempt])
    return [
        FailedTask(
            task=cell.task,
            stage=STAGES[stage].title,
            kind=cell.failure.kind.value,
            message=cell.failure.message,
            log_tail="\n".join(tails.get(cell.attempt or "", "").rstrip().splitlines()[-TAIL_LINES:]),
            since=cell.ended_at,
            variants=variants,
        )
        for stage, cell, variants in failed
        if cell.failure
    ]


def _files(database: Database, rows: Sequence[MatrixRow]) -> list[ReportedArtifact]:
    cells = [
        (row, row.stages[stage])
        for row in rows
        for stage in STAGES
        if stage in row.stages and row.stages[stage].attempt and not row.stages[stage].failure
    ]
    artifacts = artifacts_of(database, [str(cell.attempt) for _, cell in cells])
    reported = reported_kinds()
    return [
        ReportedArtifact(row.variant, row.target, cell.cached_from or cell.task, file)
        for row, cell in cells
        for file in artifacts.get(str(cell.attempt), ())
        if file.kind in reported
    ]
