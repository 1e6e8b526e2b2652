"""`haloctl query`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from orchestrator.views.formats import OutputFormat


def query(
    sql: Annotated[
        str | None, typer.Argument(help="One SELECT over the views; - reads it from stdin.", metavar="SQL")
    ] = None,
    views: Annotated[bool, typer.Option("--views", help="List the views and their columns.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many rows.", min=1, max=1_000_000)] = 1000,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", help="Stop the query after this many seconds.", min=0.1, max=3600, callback=options.finite
        ),
    ] = 30.0,
    json: options.Json = False,
    csv: options.Csv = False,
    markdown: options.Markdown = False,
    parquet: options.Parquet = None,
) -> None:
    """Query the database in SQL.

    The views stay compatible between releases, and nothing can be written. Times are in UTC. For example:
    haloctl query "select variant, min(median) from results where metric = 'itl_ms' group by variant"
    """
    from db.query.query import MAX_SQL
    from db.query.query import query as run_query
    from jobs.errors import BadSetting
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.tables import TextTable
    from orchestrator.views.formats import OutputFormat

    output_format = OutputFormat(json, csv, markdown, parquet)
    if views:
        _print_views(output_format)
        return
    if not sql:
        raise BadSetting("query", "give a SELECT; `haloctl query --views` lists the views")
    with open_context() as context:
        text = sys.stdin.buffer.read(MAX_SQL + 1).decode(errors="replace") if sql == "-" else sql
        answer = run_query(context.database, text, limit=limit, timeout_s=timeout)
    columns = _unique_names(answer.columns)
    rows = [[_to_json_value(value) for value in row] for row in answer.rows]

    def build_table() -> TextTable:
        numbers = [name for name, value in zip(columns, rows[0], strict=True) if isinstance(value, int | float)]
        cells = [["" if value is None else str(value) for value in row] for row in rows]
        return TextTable(columns, cells, right=numbers)

    named_rows = [dict(zip(columns, row, strict=True)) for row in rows]
    output_format.print_rows(named_rows, columns, build_table, "no rows match")
    if answer.is_cut:
        output.print_message(f"only the first {limit} rows are shown: raise --limit to see more")


def _unique_names(names: tuple[str, ...]) -> list[str]:
    """Number the second and later columns of the same name."""
    counts: dict[str, int] = {}
    unique = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return unique


def _to_json_value(value: object) -> object:
    """Return a value that JSON has; numbers that are not finite as text, as Postgres writes them in JSON."""
    from datetime import date, datetime
    from math import isfinite

    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return value.isoformat() if isinstance(value, date) else value


def _print_views(output_format: "OutputFormat") -> None:
    from db.query.views import VIEWS
    from orchestrator.tables import TextTable

    rows = [
        {"view": name, "column": column, "about": description}
        for name, view in VIEWS.items()
        for column, description in {"": view.title, **view.all_columns}.items()
    ]
    cells = [("" if row["column"] else row["view"], row["column"], row["about"]) for row in rows]
    output_format.print_rows(
        rows, ("view", "column", "about"), lambda: TextTable(("view", "column", ""), cells), "no views"
    )
