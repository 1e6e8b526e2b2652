"""The charts of a report, drawn by matplotlib as SVG that takes its colours and font from the page."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from io import StringIO
from statistics import median
from typing import TYPE_CHECKING, Any

from db.reads.runs import MeasuredRun
from db.writes.targets import QuotedTarget, target_for
from jobs.number_format import format_number
from jobs.plain_text import one_line
from orchestrator.views.pivots import TRACKED
from orchestrator.workloads import workload_text

if TYPE_CHECKING:
    from datetime import date

MAX_CHARTS = 24
MAX_DAYS = 90
HEADROOM = 0.15  #: of the values' range, above and below
PLOT_INCHES = (3.9, 1.7)
VALUE_TICKS = 3

#: What matplotlib draws in and the page's CSS variable for it, which is another colour in the dark.
CURVE, TARGET, TEXT, GRID = "#010101", "#020202", "#030303", "#040404"
COLOURS = {CURVE: "var(--curve)", TARGET: "var(--target)", TEXT: "var(--quiet)", GRID: "var(--rule)"}
STYLE = {
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.titlesize": 8,
    "xtick.bottom": False,
    "ytick.left": False,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.spines.bottom": False,
    "text.parse_math": False,
    **dict.fromkeys(("text.color", "axes.titlecolor", "xtick.color", "ytick.color"), TEXT),
}
#: What matplotlib writes that an SVG within a page does without: its prologue, namespaces, size, metadata, and a style
#: that would hold for the whole page.
SURPLUS = re.compile(
    r' xmlns(:\w+)?="[^"]*"| (width|height)="[^"]*pt"|<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>',
    re.DOTALL,
)
SVG_ID = re.compile(r'(?<=\bid=")|(?<=href="#)')
FONT = re.compile(r"font-family: [^;\"]*")
MARKER = re.compile(r"(<use [^>]*)/>")


@dataclass(frozen=True)
class MetricPlot:
    """One metric over time: the median of each day, and the quoted target."""

    title: str
    unit: str
    medians: "dict[date, float]"
    quoted: float | None

    @property
    def value_range(self) -> tuple[float, float]:
        """The values that are drawn, with headroom."""
        values = [*self.medians.values(), *([] if self.quoted is None else [self.quoted])]
        low, high = min(values), max(values)
        headroom = (high - low) * HEADROOM or abs(high) * HEADROOM or 1.0
        return low - headroom, high + headroom

    @property
    def tooltips(self) -> list[str]:
        """The text of each point."""
        return [f"{day}: {format_number(value)} {self.unit}" for day, value in self.medians.items()]


@dataclass(frozen=True)
class Chart:
    """The plots of one variant in one workload."""

    variant: str
    target: str
    workload: str
    plots: tuple[MetricPlot, ...]

    @property
    def has_target(self) -> bool:
        """Whether a number is quoted for one of the metrics."""
        return any(plot.quoted is not None for plot in self.plots)


def charts(runs: Iterable[MeasuredRun], quoted: Sequence[QuotedTarget]) -> list[Chart]:
    """Return one for each variant and target, in the smallest workload that was measured.

    At most MAX_CHARTS: those with a quoted target come first.
    """
    by_variant: dict[tuple[str, str], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.is_good:
            by_variant[run.variant, run.target].append(run)
    all_charts = [_chart(by_variant[key], quoted) for key in sorted(by_variant)]
    return sorted(all_charts, key=lambda chart: not chart.has_target)[:MAX_CHARTS]


def _chart(runs: Sequence[MeasuredRun], quoted: Sequence[QuotedTarget]) -> Chart:
    workload = min(run.workload for run in runs)
    by_metric = {
        metric: [run for run in runs if (run.workload, run.metric) == (workload, metric)] for metric in TRACKED
    }
    plots = tuple(_plot(metric, same, quoted) for metric, same in by_metric.items() if same)
    return Chart(runs[0].variant, runs[0].target, workload_text(workload), plots)


def _plot(metric: str, runs: Sequence[MeasuredRun], quoted: Sequence[QuotedTarget]) -> MetricPlot:
    by_day: dict[date, list[float]] = defaultdict(list)
    for run in runs:
        by_day[run.at.astimezone().date()].append(run.median)
    first = runs[0]
    sizes: dict[str, Any] = dict(first.workload)
    target = target_for(
        quoted,
        variant=first.variant,
        target=first.target,
        metric=metric,
        batch=sizes.get("batch"),
        prompt_tokens=sizes.get("prompt_tokens"),
        new_tokens=sizes.get("new_tokens"),
    )
    return MetricPlot(
        title=f"{metric.removesuffix('_ms').upper()}, {first.unit}",
        unit=first.unit,
        medians={day: median(by_day[day]) for day in sorted(by_day)[-MAX_DAYS:]},
        quoted=target.value if target else None,
    )


def to_svg(chart: Chart, number: int) -> str:
    """Draw a chart; its `number` keeps the ids of a page's charts apart."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    width, height = PLOT_INCHES[0], PLOT_INCHES[1] * len(chart.plots)
    svg = StringIO()
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)
        figure.subplots_adjust(
            left=0.13, right=0.97, bottom=0.28 / height, top=1 - 0.26 / height, hspace=0.45 if height > 2 else 0
        )
        for axes, plot in zip(figure.subplots(len(chart.plots), squeeze=False).flat, chart.plots, strict=True):
            _draw(axes, plot)
        figure.savefig(svg, format="svg", transparent=True)
    label = escape(one_line(f"{chart.variant} {chart.target}: {'; '.join(plot.title for plot in chart.plots)}"))
    tooltips = iter([text for plot in chart.plots for text in plot.tooltips])
    text = svg.getvalue()
    text = SURPLUS.sub("", text[text.index("<svg") :]).replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    text = FONT.sub("font-family: inherit", SVG_ID.sub(f"chart{number}-", text))
    for drawn, variable in COLOURS.items():
        text = text.replace(drawn, variable)
    return MARKER.sub(lambda marker: f"{marker[1]}><title>{escape(next(tooltips))}</title></use>", text)


def _draw(axes: Any, plot: MetricPlot) -> None:
    days, (low, high) = list(plot.medians), plot.value_range
    axes.set_title(plot.title, loc="left")
    axes.plot(days, list(plot.medians.values()), "o-", color=CURVE, markersize=3, linewidth=1.2, clip_on=False)
    if plot.quoted is not None:
        axes.axhline(plot.quoted, color=TARGET, linestyle="--", linewidth=1, clip_on=False)
        axes.set_title(f"target {format_number(plot.quoted)}", loc="right", color=TARGET)
    axes.set_ylim(low, high)
    values = list(_value_ticks(low, high))
    axes.set_yticks(values, [format_number(value) for value in values])
    if len(days) == 1:
        axes.set_xlim(days[0] - timedelta(days=1), days[0] + timedelta(days=1))
    ends = list(dict.fromkeys((days[0], days[-1])))
    axes.set_xticks(ends, [str(day) for day in ends])
    if len(days) > 1:
        first, last = axes.get_xticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
    axes.grid(axis="y", color=GRID, clip_on=False)  # a clip path would be a url() in the page


def _value_ticks(low: float, high: float) -> Iterator[float]:
    for index in range(VALUE_TICKS):
        yield low + (high - low) * (2 * index + 1) / (2 * VALUE_TICKS)
