"""`haloctl query`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.commands.form_options import CSV, JSON, MARKDOWN, PARQUET

if TYPE_CHECKING:
    from orchestrator.showing.forms import Form


def query(
    sql: str = typer.Argument(None, help="One SELECT over the views; - reads it from stdin.", metavar="SQL"),
    views: bool = typer.Option(False, "--views", help="Tell which views there are, and their columns."),
    limit: int = typer.Option(1000, "--limit", "-n", help="At most so many rows.", min=1, max=1_000_000),
    timeout: float = typer.Option(30.0, "--timeout", help="At most so many seconds.", min=0.1, max=3600),
    json: bool = JSON,
    csv: bool = CSV,
    markdown: bool = MARKDOWN,
    parquet: Path = PARQUET,
) -> None:
    """Ask the database in SQL.

    What is read are views that stay as they are from release to release; nothing can be written. Times are in UTC.
    For example: haloctl query "select variant, min(median) from results where metric = 'itl_ms' group by variant"
    """
    from db.query import query as ask
    from jobs.errors import BadSetting
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing.forms import Form, Shown, plain

    form = Form(json, csv, markdown, parquet)
    if views:
        _tell_views(form)
        return
    if not sql:
        raise BadSetting("query", "which? give a SELECT; `haloctl query --views` tells over what")
    with opened() as context:
        answer = ask(context.database, sys.stdin.read() if sql == "-" else sql, limit=limit, timeout_s=timeout)
    heads = _told_apart(answer.columns)
    rows = [[plain(value) for value in row] for row in answer.rows]
    lines = [["" if value is None else str(value) for value in row] for row in rows] if form.is_for_people else []
    numbers = [head for index, head in enumerate(heads) if rows and isinstance(rows[0][index], int | float)]
    form.give(
        [dict(zip(heads, row, strict=True)) for row in rows], heads, Shown(heads, lines, numbers), "no rows match"
    )
    if answer.is_cut:
        output.note(f"only the first {limit} rows: --limit gives more")


def _told_apart(names: tuple[str, ...]) -> list[str]:
    """A second column of one name gets a number."""
    counts: dict[str, int] = {}
    heads = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        heads.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return heads


def _tell_views(form: "Form") -> None:
    from db.views import VIEWS
    from orchestrator.showing.forms import Shown

    rows = [
        {"view": name, "column": column, "about": said}
        for name, view in VIEWS.items()
        for column, said in {"": view.title, **view.columns}.items()
    ]
    lines = [("" if row["column"] else row["view"], row["column"], row["about"]) for row in rows]
    form.give(rows, ("view", "column", "about"), Shown(("view", "column", ""), lines), "")
