"""`haloctl trend`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from orchestrator.analysis.trends import TrendSeries

MAX_PLOTS = 2  #: more series are shown in the table only
MIN_PLOTTED_RUNS = 3


def trend(
    metric: Annotated[
        str, typer.Argument(help="ttft_ms, itl_ms, vmfb_bytes, ...; an unknown one lists all.", metavar="METRIC")
    ],
    model: options.Model = None,
    variant: options.Variant = None,
    target: options.Target = None,
    toolchain: options.Toolchain = None,
    node: Annotated[str | None, typer.Option("--node", help="The node that ran it.")] = None,
    batch: options.Batch = None,
    prompt_tokens: options.PromptTokens = None,
    since: options.Since = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Up to this date (its end), time or age: 2026-11-20, 12h.")
    ] = None,
    disturbed: options.Disturbed = False,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw plots: .svg, .png or .pdf.", dir_okay=False)
    ] = None,
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """Show a metric over time, its level changes and their causes.

    There is one series for each variant, workload and device; of very many measurements the newest are read. Noise is
    the dispersion between runs of the same program, runtime and driver. CSV has a row for each run.
    """
    from orchestrator import output
    from orchestrator.answers import measurements
    from orchestrator.context import open_context
    from orchestrator.views import plots, trend_rows
    from orchestrator.views.formats import OutputFormat, nothing_found, writing

    output_format = OutputFormat(json, csv)
    if file is not None:
        plots.check_file(file)
    with open_context() as context:
        all_series = measurements.trend(
            context.database,
            metric,
            since=since,
            until=until,
            model=model,
            variant=variant,
            target=target,
            toolchain=toolchain,
            node=node,
            batch=batch,
            prompt_tokens=prompt_tokens,
            disturbed=disturbed,
        )
    if output_format.json:
        output.print_json([trend_rows.to_json(series) for series in all_series])
    elif output_format.csv:
        output.print_csv((row for series in all_series for row in trend_rows.csv_rows(series)), trend_rows.CSV_COLUMNS)
    elif all_series:
        _print_series(all_series)
    else:
        filters = (model, variant, target, toolchain, node, batch, prompt_tokens, since, until)
        output.print_message(nothing_found(f"measurements of {metric}", *filters))
    if file is not None and all_series:
        with writing(file):
            plots.to_file(file, all_series)
        output.print_message(f"written: {file}")


def _print_series(all_series: "list[TrendSeries]") -> None:
    from orchestrator import output
    from orchestrator.views import plots, trend_rows

    for series in all_series if len(all_series) <= MAX_PLOTS else ():
        if len(series.runs) >= MIN_PLOTTED_RUNS:
            output.print_raw(plots.in_terminal(series, colour=output.has_colour()) + "\n")
    output.print_table(trend_rows.to_table(all_series))
    changes = trend_rows.changes_table(all_series)
    if changes.rows:
        output.print_line("")
        output.print_table(changes)
