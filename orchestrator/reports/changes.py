"""Verdicts and numbers that changed since the last report. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from db.reads.matrix import CellRow, MatrixRow
from db.reads.runs import MeasuredRun
from jobs.stages import STAGES
from orchestrator.views.matrix_view import STATE_LABELS
from orchestrator.workloads import Workload

MIN_SHIFT = 0.03  #: of a number that is shown; `haloctl compare` says whether it is more than noise
MAX_SHIFTS = 20
MAX_EARLIER_RUNS = 5  #: that a number is compared with


@dataclass(frozen=True)
class VerdictChange:
    """A cell of the matrix whose verdict changed."""

    variant: str
    target: str
    stage: str
    was: str  #: empty: no verdict
    now: str
    task: str


@dataclass(frozen=True)
class MetricShift:
    """A metric of one workload that went up or down."""

    variant: str
    target: str
    workload: Workload
    metric: str
    unit: str
    was: float  #: the median of the last few runs
    now: float

    @property
    def ratio(self) -> float:
        """Now divided by before."""
        return self.now / self.was


def verdict_changes(before: Iterable[MatrixRow], now: Iterable[MatrixRow]) -> list[VerdictChange]:
    """Return cells with a new verdict, in the order of the matrix."""
    old = {(row.variant, row.target, stage): verdict(cell) for row in before for stage, cell in row.stages.items()}
    return [
        VerdictChange(row.variant, row.target, STAGES[stage].title, was, word, cell.task)
        for row in now
        for stage, cell in row.stages.items()
        if (word := verdict(cell)) and word != (was := old.get((row.variant, row.target, stage), ""))
    ]


def verdict(cell: CellRow) -> str:
    """Return `PASS` or `FAIL tool_failed`; empty where there is no verdict."""
    if cell.failure:
        return f"{STATE_LABELS[cell.state]} {cell.failure.kind}"
    return word if (word := STATE_LABELS[cell.state]) == "PASS" else ""


def metric_shifts(runs: Iterable[MeasuredRun], since: datetime) -> list[MetricShift]:
    """Return the largest shifts: the median of all runs since against that of the last few before, device by device."""
    old: dict[tuple[object, ...], list[MeasuredRun]] = defaultdict(list)
    new: dict[tuple[object, ...], list[MeasuredRun]] = defaultdict(list)
    for run in runs:  # the newest first
        if run.is_good:
            (old if run.at < since else new)[run.series_key].append(run)
    shifts = [_shift(old[key][:MAX_EARLIER_RUNS], latest) for key, latest in new.items() if key in old]
    large = [shift for shift in shifts if shift and abs(shift.ratio - 1) >= MIN_SHIFT]
    return sorted(large, key=lambda shift: abs(shift.ratio - 1), reverse=True)[:MAX_SHIFTS]


def _shift(old: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> MetricShift | None:
    was, now, run = median(run.median for run in old), median(run.median for run in new), new[0]
    return MetricShift(run.variant, run.target, run.workload, run.metric, run.unit, was, now) if was > 0 else None
