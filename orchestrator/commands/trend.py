"""`haloctl trend`."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.deciding.trends import Series

MOST_PLOTTED = 2  #: more series are told of in a table alone
LEAST_PLOTTED = 3  #: runs: fewer show nothing


def trend(
    metric: str = typer.Argument(
        help="ttft_ms, itl_ms, vmfb_bytes, ...; a wrong one lists them all.", metavar="METRIC"
    ),
    model: str = typer.Option(None, "--model", help="A model's name, or a pattern such as 'llama*'."),
    variant: str = typer.Option(None, "--variant", help="A variant's name or pattern."),
    target: str = typer.Option(None, "--target", help="cpu, mi300x, ..."),
    toolchain: str = typer.Option(None, "--toolchain", help="What it was measured under: a name, or 'iree-*'."),
    node: str = typer.Option(None, "--node", help="The node that it was measured on."),
    batch: int = typer.Option(None, "--batch", help="The workload's batch size.", min=1),
    prompt_tokens: int = typer.Option(None, "--prompt-tokens", help="Its prompt length.", min=1),
    since: str = typer.Option(None, "--since", help="A date or time (2026-11-20), or an age: 90m, 12h, 7d."),
    until: str = typer.Option(None, "--until", help="A date, to its end, or a time or an age."),
    disturbed: bool = typer.Option(False, "--disturbed", help="Also what something else disturbed."),
    output: Path = typer.Option(
        None, "--output", "-o", help="Draw it into a file: .svg, .png or .pdf.", dir_okay=False
    ),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
    csv: bool = typer.Option(False, "--csv", help="Answer in CSV: a row for each run."),
) -> None:
    """Show a metric over time, where its level changes, and what changed with it.

    A series for each variant, workload and device; of very many measurements the newest. Noise is how runs scatter
    between which neither program, runtime nor driver changed.
    """
    from datetime import UTC, datetime

    from db.runs import Chosen, identities_of, runs
    from jobs.errors import BadSetting
    from jobs.metrics import METRICS
    from orchestrator import output as answer
    from orchestrator.context import opened
    from orchestrator.deciding import plots, trends
    from orchestrator.showing import rows
    from orchestrator.showing.forms import nothing_found, writing

    if metric not in METRICS:
        raise BadSetting("METRIC", f"no metric is called {metric!r}: there are {', '.join(METRICS)}")
    if output is not None:
        plots.expect(output)
    filters = (model, variant, target, toolchain, node, batch, prompt_tokens, since, until)
    now = datetime.now(UTC)
    begin = rows.point_in_time(since, now) if since else None
    end = rows.end_in_time(until, now, "--until") if until else None
    chosen = Chosen(
        (metric,),
        model=model,
        variant=variant,
        target=target,
        toolchain=toolchain,
        node=node,
        batch=batch,
        prompt_tokens=prompt_tokens,
        since=begin,
        until=end,
        disturbed=disturbed,
    )
    with opened() as context:
        found = trends.series_of(runs(context.database, chosen))
        found = trends.named(found, identities_of(context.database, trends.attempts_beside(found)))
    if output is not None and found:
        with writing(output):
            plots.to_file(output, found)
    nothing = nothing_found(f"measurements of {metric}", *filters)
    _print(found, nothing, json=json, csv=csv)
    if output is not None and found:
        answer.note(f"written: {output}")


def _print(found: "list[Series]", nothing: str, *, json: bool, csv: bool) -> None:
    from orchestrator import output
    from orchestrator.deciding import plots, trend_rows

    if json:
        output.as_json([trend_rows.as_json(one) for one in found])
    elif csv:
        output.as_csv((row for one in found for row in trend_rows.csv_rows(one)), trend_rows.CSV_COLUMNS)
    elif not found:
        output.note(nothing)
    else:
        if len(found) <= MOST_PLOTTED:
            for one in (one for one in found if len(one.runs) >= LEAST_PLOTTED):
                output.raw(plots.in_terminal(one, colour=output.is_colourful()) + "\n")
        output.table(trend_rows.COLUMNS, map(trend_rows.line, found), right=trend_rows.RIGHT)
        if changes := [line for one in found for line in trend_rows.change_lines(one)]:
            output.answer("")
            output.table(trend_rows.CHANGE_COLUMNS, changes, right=trend_rows.CHANGE_RIGHT)
