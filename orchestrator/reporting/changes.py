"""What is another than it was: verdicts, and numbers. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from db.matrix import CellRow, MatrixRow
from db.runs import Run
from jobs.stages import STAGES
from orchestrator.showing.matrix_view import WORDS
from orchestrator.showing.workloads import Workload

LEAST_SHIFT = 0.03  #: of a number that is told; whether it is more than noise is for `haloctl compare` to say
MOST_SHIFTS = 20
MOST_BEFORE = 5  #: runs that a number is held against


@dataclass(frozen=True)
class Change:
    """A cell whose verdict is another."""

    variant: str
    target: str
    stage: str
    was: str  #: empty: there was none
    now: str
    task: str


@dataclass(frozen=True)
class Shift:
    """A number of one workload that went up or down."""

    variant: str
    target: str
    workload: Workload
    metric: str
    unit: str
    was: float  #: the median of the last few runs
    now: float

    @property
    def ratio(self) -> float:
        """How many times as large it is."""
        return self.now / self.was


def changes(before: Iterable[MatrixRow], now: Iterable[MatrixRow]) -> list[Change]:
    """Cells with a verdict now that they did not have then, in the order of the matrix."""
    old = {(row.variant, row.target, stage): verdict(cell) for row in before for stage, cell in row.stages.items()}
    return [
        Change(row.variant, row.target, STAGES[stage].title, was, word, cell.task)
        for row in now
        for stage, cell in row.stages.items()
        if (word := verdict(cell)) and word != (was := old.get((row.variant, row.target, stage), ""))
    ]


def verdict(cell: CellRow) -> str:
    """`PASS`, `FAIL tool_failed`; empty where there is none."""
    if cell.failure:
        return f"{WORDS[cell.state]} {cell.failure.kind}"
    return word if (word := WORDS[cell.state]) == "PASS" else ""


def shifts(runs: Iterable[Run], since: datetime) -> list[Shift]:
    """The largest ones: the median of all runs since against that of the last few before, in the same places."""
    old: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    new: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:  # the newest first
        if run.is_good:
            (old if run.at < since else new)[run.bench].append(run)
    found = [_shift(old[bench][:MOST_BEFORE], ones) for bench, ones in new.items() if bench in old]
    large = [one for one in found if one and abs(one.ratio - 1) >= LEAST_SHIFT]
    return sorted(large, key=lambda one: abs(one.ratio - 1), reverse=True)[:MOST_SHIFTS]


def _shift(old: Sequence[Run], new: Sequence[Run]) -> Shift | None:
    was, now, one = median(run.median for run in old), median(run.median for run in new), new[0]
    return Shift(one.variant, one.target, one.workload, one.metric, one.unit, was, now) if was > 0 else None
