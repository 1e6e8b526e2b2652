"""What a report tells, read from the database."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from db.engine import Database
from db.matrix import CellRow, MatrixRow, matrix
from db.reported import artifacts_of, last_report, log_tails
from db.runs import Chosen, Run, runs
from db.targets import QuotedTarget, quoted_targets
from jobs.stages import STAGES
from jobs.task import Artifact
from orchestrator.reporting.changes import Change, Shift, changes, shifts
from orchestrator.showing.pivoting import TRACKED, Pivot, parted, pivot

FIRST_TIME = timedelta(days=7)  #: what the first report looks back on
DATES = 6
MOST_RUNS = 20_000
MOST_FAILURES = 30
TAIL_LINES = 20
LISTED_KINDS = ("mlir", "irpa", "vmfb", "config", "trace")
MADE_BY = ("quantize", "export", "compile", "profile")


@dataclass(frozen=True)
class Filters:
    """What a report is about; none: all there is."""

    model: str | None = None
    variant: str | None = None
    target: str | None = None

    @property
    def text(self) -> str:
        """In words; empty: all there is."""
        return ", ".join(f"{name} {value}" for name, value in vars(self).items() if value)


@dataclass(frozen=True)
class FailedTask:
    """A task whose newest verdict is a failure, with the rows of the matrix that it stands in."""

    task: str
    stage: str
    kind: str
    message: str
    log_tail: str
    since: datetime | None
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Made:
    """A file of a row of the matrix."""

    variant: str
    target: str
    task: str
    file: Artifact


@dataclass(frozen=True)
class Report:
    """All of a page."""

    at: datetime
    since: datetime
    is_first: bool
    filters: Filters
    rows: Sequence[MatrixRow]
    benchmark: Pivot
    runs: Sequence[Run]
    quoted: Sequence[QuotedTarget]
    changed: Sequence[Change]
    shifted: Sequence[Shift]
    files: Sequence[Made]
    failures: Sequence[FailedTask]
    failures_left_out: int = 0
    disturbed: int = 0  #: measurements that something else disturbed, which are not among `runs`
    files_at: dict[str, str] = field(default_factory=dict)  #: by sha256, where one can be fetched by a browser


def collect(database: Database, at: datetime, since: datetime | None, filters: Filters) -> Report:
    """Read everything; without `since` what changed is told since the last report."""
    last = since or last_report(database)
    begin = last or at - FIRST_TIME
    rows = matrix(database, **vars(filters))
    found, disturbed = parted(runs(database, Chosen(TRACKED, disturbed=True, **vars(filters)), most=MOST_RUNS))
    quoted = quoted_targets(database)
    failed = list(_failed(rows))
    return Report(
        at=at,
        since=begin,
        is_first=last is None,
        filters=filters,
        rows=rows,
        benchmark=pivot(found, "date", quoted, DATES),
        runs=found,
        quoted=quoted,
        changed=changes(matrix(database, before=begin, **vars(filters)), rows),
        shifted=shifts(found, begin),
        files=_files(database, rows),
        failures=_failures(database, failed[:MOST_FAILURES]),
        failures_left_out=max(len(failed) - MOST_FAILURES, 0),
        disturbed=disturbed,
    )


Places = tuple[str, CellRow, tuple[str, ...]]  #: a stage, one of its cells, and the rows that its task stands in


def _failed(rows: Iterable[MatrixRow]) -> Iterable[Places]:
    """The newest failures first, each once."""
    found: dict[str, Places] = {}
    for row in rows:
        for stage, cell in row.stages.items():
            if cell.failure:
                before = found[cell.task][2] if cell.task in found else ()
                found[cell.task] = (stage, cell, (*before, f"{row.variant} {row.target}"))
    return sorted(found.values(), key=lambda one: one[1].ended_at.timestamp() if one[1].ended_at else 0.0, reverse=True)


def _failures(database: Database, failed: Sequence[Places]) -> list[FailedTask]:
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


def _files(database: Database, rows: Sequence[MatrixRow]) -> list[Made]:
    cells = [
        (row, row.stages[stage])
        for row in rows
        for stage in MADE_BY
        if stage in row.stages and row.stages[stage].attempt and not row.stages[stage].failure
    ]
    found = artifacts_of(database, [str(cell.attempt) for _, cell in cells])
    return [
        Made(row.variant, row.target, cell.cached_from or cell.task, file)
        for row, cell in cells
        for file in found.get(str(cell.attempt), ())
        if file.kind in LISTED_KINDS
    ]
