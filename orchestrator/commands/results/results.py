"""`haloctl results`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from db.reads.runs import MeasuredRun
    from orchestrator.context import Context
    from orchestrator.views.formats import OutputFormat

MAX_TABLE_ROWS = 1000  #: without --limit
MAX_RUNS = 20_000  #: the newest ones, read for --pivot and --group


def results(
    model: options.Model = None,
    variant: options.Variant = None,
    target: options.Target = None,
    toolchain: options.Toolchain = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="A metric, or a pattern: ttft_ms, '*_ms', ...; an unknown one lists all."),
    ] = None,
    since: options.Since = None,
    job: options.Job = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            help=f"At most this many, newest first; 0 for all. Tables: {MAX_TABLE_ROWS}.",
            min=0,
            max=options.MAX_NUMBER,
        ),
    ] = None,
    pivot: Annotated[
        str | None,
        typer.Option("--pivot", help="A column for each date, week, month, toolchain, engine, node, device or job."),
    ] = None,
    columns: Annotated[
        int,
        typer.Option(
            "--columns",
            help="With --pivot: at most this many columns, the newest; 0 for all.",
            min=0,
            max=options.MAX_NUMBER,
        ),
    ] = 6,
    group: Annotated[
        str | None, typer.Option("--group", help="Summarize by variant, model,node, ...; an unknown one lists all.")
    ] = None,
    json: options.Json = False,
    csv: options.Csv = False,
    markdown: options.Markdown = False,
    parquet: options.Parquet = None,
) -> None:
    """Print measurements, newest first.

    The workload 4 x 2048 + 128 is four prompts of 2048 tokens, with 128 new tokens each. JSON, CSV and Parquet contain
    the samples and the context. --pivot and --group show medians over runs: of TTFT and ITL without --metric.
    """
    from datetime import UTC, datetime

    from jobs.errors import BadSetting
    from orchestrator import times
    from orchestrator.context import open_context
    from orchestrator.views.formats import OutputFormat

    output_format = OutputFormat(json, csv, markdown, parquet)
    if pivot and group:
        raise BadSetting("--group", "does not go with --pivot: choose one")
    metrics = _matching_metrics(metric)
    begin = times.parse_time(since, datetime.now(UTC)) if since else None
    names = {"job": job, "model": model, "variant": variant, "target": target, "toolchain": toolchain}
    with open_context() as context:
        if pivot:
            _print_pivot(output_format, context, pivot, columns, metrics, begin, names)
        elif group:
            _print_groups(output_format, context, group, metrics, begin, names)
        else:
            _print_measurements(output_format, context, metric, begin, limit, names)


def _matching_metrics(pattern: str | None) -> tuple[str, ...]:
    from jobs.errors import BadSetting
    from jobs.metrics import METRICS, metrics_like
    from orchestrator.views.pivots import TRACKED

    metrics = TRACKED if pattern is None else metrics_like(pattern)
    if not metrics:
        raise BadSetting("--metric", f"unknown metric {pattern!r}: choose one of {', '.join(METRICS)}")
    return metrics


def _print_measurements(
    output_format: "OutputFormat",
    context: "Context",
    metric: str | None,
    since: "datetime | None",
    limit: int | None,
    names: dict[str, Any],
) -> None:
    from db.reads.results import results as read_results
    from orchestrator import output
    from orchestrator.views import rows
    from orchestrator.views.formats import nothing_found

    has_table_limit = limit is None and output_format.is_for_people
    max_rows = MAX_TABLE_ROWS + 1 if has_table_limit else limit or None
    measurements = read_results(context.database, metric=metric, since=since, limit=max_rows, **names)
    is_cut = has_table_limit and len(measurements) > MAX_TABLE_ROWS
    results = [rows.result_to_json(row) for row in (measurements[:MAX_TABLE_ROWS] if is_cut else measurements)]
    message = nothing_found("measurements", metric, since, *names.values())
    output_format.print_rows(results, rows.RESULT_COLUMNS, lambda: rows.build_result_table(results), message)
    if is_cut:
        output.print_message(f"only the newest {MAX_TABLE_ROWS} are shown: use --limit 0, --since or --variant")


def _print_pivot(
    output_format: "OutputFormat",
    context: "Context",
    by: str,
    columns: int,
    metrics: tuple[str, ...],
    since: "datetime | None",
    names: dict[str, Any],
) -> None:
    from db.writes.targets import quoted_targets
    from jobs.errors import BadSetting
    from orchestrator import output
    from orchestrator.views import pivots

    if by not in pivots.PIVOTS:
        raise BadSetting("--pivot", f"unknown column {by!r}: choose one of {', '.join(pivots.PIVOTS)}")
    is_complete_only = not columns or by not in pivots.IN_TIME
    runs = _read_runs(context, metrics, since, names, warns_when_cut=is_complete_only)
    quoted = quoted_targets(context.database)
    table = pivots.pivot(runs, by, quoted, columns)
    is_for_people = output_format.is_for_people
    while is_for_people and len(table.columns) > 1 and not output.fits_terminal(pivots.to_table(table)):
        table = pivots.pivot(runs, by, quoted, len(table.columns) - 1)
    if output_format.json:
        output.print_json(pivots.to_json(table))
        return
    rows, headings = pivots.to_csv(table)
    output_format.print_rows(rows, headings, lambda: pivots.to_table(table), _empty_message(metrics, since, names))
    for text in pivots.pivot_notes(table) if rows and is_for_people else ():
        if output_format.markdown:
            output.print_line("")
        output.print_line(text)


def _print_groups(
    output_format: "OutputFormat",
    context: "Context",
    group: str,
    metrics: tuple[str, ...],
    since: "datetime | None",
    names: dict[str, Any],
) -> None:
    from orchestrator.views import grouping

    keys = grouping.parse(group)
    rows = grouping.group_runs(_read_runs(context, metrics, since, names, warns_when_cut=True), keys)
    message = _empty_message(metrics, since, names)
    output_format.print_rows(rows, grouping.csv_columns(keys), lambda: grouping.to_table(rows, keys), message)


def _empty_message(metrics: tuple[str, ...], since: "datetime | None", names: dict[str, Any]) -> str:
    from orchestrator.views.formats import nothing_found
    from orchestrator.views.pivots import TRACKED

    what = "measurements" if len(metrics) > len(TRACKED) else f"measurements of {', '.join(metrics)}"
    return nothing_found(what, since, *names.values())


def _read_runs(
    context: "Context",
    metrics: tuple[str, ...],
    since: "datetime | None",
    names: dict[str, Any],
    *,
    warns_when_cut: bool,
) -> "Sequence[MeasuredRun]":
    from db.reads.run_filter import RunFilter
    from db.reads.runs import runs
    from orchestrator import output
    from orchestrator.views import pivots

    newest = runs(context.database, RunFilter(metrics, since=since, disturbed=True, **names), most=MAX_RUNS)
    if warns_when_cut and len(newest) >= MAX_RUNS:
        output.print_message(f"only the newest {MAX_RUNS} runs are read: use --since or --variant")
    undisturbed, disturbed_count = pivots.split_disturbed(newest)
    if disturbed_count:
        output.print_message(pivots.disturbed_note(disturbed_count))
    return undisturbed
