"""Where the points and lines of a report's plots lie. Pure: the page draws them as SVG."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from db.runs import Run
from db.targets import QuotedTarget, target_for
from orchestrator.output import number
from orchestrator.showing.pivoting import TRACKED
from orchestrator.showing.workloads import workload_text

if TYPE_CHECKING:
    from datetime import date

WIDTH, HEIGHT = 380, 150
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 12, 22  #: room for what is written beside the plot
MOST_CHARTS = 24
MOST_POINTS = 90
HEADROOM = 0.15  #: of the values' range, above and below
TICKS = 3


@dataclass(frozen=True)
class Point:
    """A day's median."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Tick:
    """A value beside the plot."""

    y: float
    text: str


@dataclass(frozen=True)
class Plot:
    """One metric over time."""

    title: str
    points: tuple[Point, ...]
    ticks: tuple[Tick, ...]
    first: str
    last: str
    target_y: float | None
    target_text: str

    @property
    def line(self) -> str:
        """As SVG's polyline has it."""
        return " ".join(f"{point.x},{point.y}" for point in self.points)


@dataclass(frozen=True)
class Chart:
    """One variant in one workload."""

    variant: str
    target: str
    workload: str
    plots: tuple[Plot, ...]

    @property
    def has_target(self) -> bool:
        """Whether a number is quoted that it is held against."""
        return any(plot.target_text for plot in self.plots)


def charts(runs: Iterable[Run], quoted: Sequence[QuotedTarget]) -> list[Chart]:
    """One for each variant and target, in the smallest workload that was measured of it.

    At most MOST_CHARTS: those that have something to reach come first.
    """
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if run.is_good:
            found[run.variant, run.target].append(run)
    drawn = [_chart(found[key], quoted) for key in sorted(found)]
    return sorted(drawn, key=lambda chart: not chart.has_target)[:MOST_CHARTS]


def _chart(runs: Sequence[Run], quoted: Sequence[QuotedTarget]) -> Chart:
    workload = min((run.workload for run in runs), key=lambda sizes: tuple(size for _, size in sizes))
    plots = tuple(
        _plot(metric, ones, quoted)
        for metric in TRACKED
        if (ones := [run for run in runs if (run.workload, run.metric) == (workload, metric)])
    )
    return Chart(runs[0].variant, runs[0].target, workload_text(workload), plots)


def _plot(metric: str, runs: Sequence[Run], quoted: Sequence[QuotedTarget]) -> Plot:
    days: dict[date, list[float]] = defaultdict(list)
    for run in runs:
        days[run.at.astimezone().date()].append(run.median)
    shown = sorted(days)[-MOST_POINTS:]
    values = [median(days[day]) for day in shown]
    one, sizes = runs[0], dict(runs[0].workload)
    held = target_for(
        quoted,
        variant=one.variant,
        target=one.target,
        metric=metric,
        batch=sizes.get("batch"),
        prompt_tokens=sizes.get("prompt_tokens"),
        new_tokens=sizes.get("new_tokens"),
    )
    low, high = _range([*values, *([held.value] if held else [])])
    span_days = (shown[-1] - shown[0]).days or 1
    places = [LEFT + (WIDTH - LEFT - RIGHT) * (day - shown[0]).days / span_days for day in shown]
    if len(shown) == 1:
        places = [(LEFT + WIDTH - RIGHT) / 2]
    return Plot(
        title=f"{metric.removesuffix('_ms').upper()}, {one.unit}",
        points=tuple(
            Point(round(x, 1), _y(value, low, high), f"{day}: {number(value)} {one.unit}")
            for x, value, day in zip(places, values, shown, strict=True)
        ),
        ticks=tuple(
            Tick(_y(value, low, high), number(value))
            for value in (low + (high - low) * (2 * index + 1) / (2 * TICKS) for index in range(TICKS))
        ),
        first=f"{shown[0]}" if len(shown) > 1 else "",
        last=f"{shown[-1]}",
        target_y=_y(held.value, low, high) if held else None,
        target_text=f"target {number(held.value)}" if held else "",
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * HEADROOM or abs(high) * HEADROOM or 1.0
    return low - room, high + room


def _y(value: float, low: float, high: float) -> float:
    return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)
