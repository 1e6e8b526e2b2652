"""A report as one HTML file that fetches nothing. Pure."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from orchestrator.output import FIRST_WORD
from orchestrator.reporting import charts, words
from orchestrator.reporting.collecting import Report
from orchestrator.showing.matrix_view import NOT_APPLICABLE

#: How a cell looks that begins with a word.
LOOKS = {"PASS": "pass", "FAIL": "fail", "waits": "waits", "running": "waits", NOT_APPLICABLE: "none", "none": "none"}


def page(report: Report) -> str:
    """All of it; whatever tools and people wrote is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["look"] = _look
    environment.globals["words"], environment.globals["charts"] = words, charts
    return environment.get_template("page.html.j2").render(
        report=report, charts_shown=charts.charts(report.runs, report.quoted)
    )


def _look(text: str) -> str:
    found = FIRST_WORD.match(text)
    return LOOKS.get(text) or LOOKS.get(found[0] if found else "", "")
