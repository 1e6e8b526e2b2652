"""A report as one HTML file that fetches nothing. Pure."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from jobs.plain_text import escape_hidden, plain_log
from orchestrator.reports import charts, sections
from orchestrator.reports.report import StatusReport
from orchestrator.tables import FIRST_WORD
from orchestrator.views.matrix_view import NOT_APPLICABLE

#: The CSS class of a cell, by its text or first word.
CELL_CLASSES = {
    "PASS": "pass",
    "FAIL": "fail",
    "unschedulable": "waits",
    "running": "waits",
    "failed": "fail",
    "succeeded": "pass",
    "cached": "pass",
    NOT_APPLICABLE: "none",
    "none": "none",
}


def page(report: StatusReport) -> str:
    """Render the page; text of tools and people is escaped."""
    environment = make_environment(Path(__file__).parent)
    environment.filters["drawn"] = lambda chart, number: Markup(charts.to_svg(chart, number))
    environment.globals["sections"] = sections
    return environment.get_template("page.html.j2").render(
        report=report, charts_shown=charts.charts(report.runs, report.quoted)
    )


def make_environment(templates: Path) -> Environment:
    """Return an environment for templates of pages, in which whatever tools and people wrote is escaped."""
    environment = Environment(
        loader=FileSystemLoader(templates), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_show_hidden,
    )  # fmt: skip
    environment.filters["look"] = _cell_class
    environment.filters["plain_log"] = plain_log
    return environment


def _show_hidden(value: object) -> object:
    """Escape hidden characters, which could reverse or hide a part of the page, in all but markup of ours."""
    return escape_hidden(value, keep="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


def _cell_class(text: str) -> str:
    word = FIRST_WORD.match(text)
    return CELL_CLASSES.get(text) or CELL_CLASSES.get(word[0] if word else "", "")
