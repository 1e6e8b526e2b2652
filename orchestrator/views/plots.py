"""Series as pictures: in a terminal by plotext, in a file by matplotlib."""

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from jobs.errors import BadSetting
from jobs.plain_text import one_line
from orchestrator.analysis.trends import TrendSeries
from orchestrator.workloads import workload_words

SUFFIXES = (".svg", ".png", ".pdf")
MAX_PANELS = 24
WIDTH, HEIGHT = 80, 16  #: characters
THEME = "simple"  #: keeps the terminal's background
MARKER = "●"
HALF_DAY = timedelta(hours=12)
TIME_INTERVALS = 4


def in_terminal(series: TrendSeries, *, colour: bool) -> str:
    """Draw a series over time, with a line where its level changes."""
    import plotext

    figure, begin, end = plotext.figure, series.runs[0].at, series.runs[-1].at
    figure.clear()
    figure.theme(THEME)
    figure.plot_size(WIDTH, HEIGHT)
    figure.title(title_of(series))
    days = [_days(begin, run.at) for run in series.runs]
    figure.draw(figure.signal(days, [run.median for run in series.runs], marker=MARKER))
    for change in series.changes:
        figure.line(_days(begin, change.at), "vertical")
    ticks = [begin + part * (end - begin) / TIME_INTERVALS for part in range(TIME_INTERVALS + 1)]
    form = "%m-%d %H:%M" if end - begin < TIME_INTERVALS * timedelta(days=1) else "%Y-%m-%d"
    places = [_days(begin, tick) for tick in ticks]
    figure.ruler("x", "lower").ticks(places, [tick.astimezone().strftime(form) for tick in ticks])
    return str(figure.build().string(colorless=not colour))


def _days(begin: datetime, at: datetime) -> float:
    return (at - begin) / timedelta(days=1)


def title_of(series: TrendSeries) -> str:
    """Return `ttft_ms of tiny-llama-FP16-TP1 cpu, batch 1, prompt 64`."""
    first = series.first
    parts = (f"{first.metric} of {first.variant} {first.target}".strip(), workload_words(first.workload))
    return one_line(", ".join(filter(None, parts)))


def check_file(file: Path) -> None:
    """Raise BadSetting where no picture can be written to the file."""
    if file.suffix.lower() not in SUFFIXES:
        raise BadSetting("--output", f"{file} must end with {', '.join(SUFFIXES)}")
    if not file.absolute().parent.is_dir():
        raise BadSetting("--output", f"there is no folder {file.absolute().parent}")


def to_file(file: Path, series: Sequence[TrendSeries]) -> None:
    """Draw a panel for each variant and workload, a colour for each device; raise BadSetting if there are too many."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(series)
    if len(panels) > MAX_PANELS:
        raise BadSetting("--output", f"{len(panels)} panels do not fit a picture: choose some with --variant")
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    with rc_context({"text.parse_math": False}):  # names are not formulas
        figure = Figure(figsize=(8 * columns, 3.2 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False)
        for panel, axes in zip(panels, grid.flat, strict=False):
            _draw(axes, panel)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        figure.savefig(file, dpi=120, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)


def _panels(series: Sequence[TrendSeries]) -> list[list[TrendSeries]]:
    """Group the devices of one variant and workload."""
    panels: dict[Any, list[TrendSeries]] = defaultdict(list)
    for trend in series:
        panels[trend.first.series_key[:-1]].append(trend)
    return list(panels.values())


def _draw(axes: Any, panel: Sequence[TrendSeries]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    for number, trend in enumerate(panel):
        colour = f"C{number}"
        axes.plot([run.at for run in trend.runs], [run.median for run in trend.runs], ".", color=colour,
                  label=one_line(trend.first.place), alpha=0.6)  # fmt: skip
        for begin, end, level in trend.levels:
            axes.plot([trend.runs[begin].at, trend.runs[end - 1].at], [level, level], "-", color=colour, linewidth=1.5)
        for change in trend.changes:
            axes.axvline(change.at, color=colour, linestyle="--", linewidth=1)
            axes.annotate(
                f"{change.percent_text}\n{_likeliest(change.suspects)}", (change.at, 1),
                xycoords=("data", "axes fraction"), xytext=(4, -4), textcoords="offset points", va="top", fontsize=7,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
            )  # fmt: skip
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    times = {run.at for trend in panel for run in trend.runs}
    if len(times) == 1:  # matplotlib would show some years
        axes.set_xlim(*(at + by for at in times for by in (-HALF_DAY, HALF_DAY)))
    axes.set_title(title_of(panel[0]), fontsize=9)
    axes.set_ylabel(panel[0].first.unit)
    axes.grid(visible=True, alpha=0.3)
    if len(panel) > 1:
        axes.legend(fontsize=7)


def _likeliest(suspects: Sequence[str]) -> str:
    first = one_line(suspects[0]) if suspects else ""
    return first if len(first) <= 40 else f"{first[:37]}..."
