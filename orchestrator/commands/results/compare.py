"""`haloctl compare`."""

from typing import Annotated

import typer

from orchestrator.commands import options


def compare(
    old: Annotated[str, typer.Argument(help="The baseline: see above.", metavar="A")],
    new: Annotated[str, typer.Argument(help="What is compared with it.", metavar="B")],
    metric: Annotated[
        str | None, typer.Option("--metric", help="A metric, or a pattern; all timings of a benchmark by default.")
    ] = None,
    model: options.Model = None,
    variant: options.Variant = None,
    target: options.Target = None,
    margin: Annotated[
        float,
        typer.Option(
            "--margin",
            help="Differences up to this many percent are equivalent.",
            min=0.1,
            max=50,
            callback=options.finite,
        ),
    ] = 2.0,
    each_device: Annotated[bool, typer.Option("--each-device", help="Print a row for each device.")] = False,
    disturbed: options.Disturbed = False,
    run: Annotated[
        bool, typer.Option("--run", help="Measure A and B alternately on one device until the verdict is clear.")
    ] = False,
    budget: Annotated[
        str, typer.Option("--budget", help="With --run: at most this many runs (64), or this long (20m, 2h).")
    ] = "64",
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """Say whether B is faster than A, slower or equivalent.

    A and B are a job's, task's or attempt's id, an engine (torch), a variant, a day (2026-11-20) or a period
    (2026-11-01..2026-11-08, both days included; 7d..), or job:, variant:, toolchain:, engine:, model:, target:, node:,
    result: with a name or pattern. Commas join several: engine:torch,7d..

    Runs are paired by device, workload and metric; a run counts once, whatever its number of repetitions. An
    inconclusive verdict says how many more runs would decide it. At most 1 in 100 verdicts of a table is due to noise.

    With --run, B may be A itself: this measures the noise of the device, which gates and comparisons use from then on.
    """
    from orchestrator.answers import measurements
    from orchestrator.context import open_context
    from orchestrator.reruns import interleaved
    from orchestrator.views import comparison_rows
    from orchestrator.views.formats import OutputFormat

    output_format = OutputFormat(json, csv)
    names = {"metric": metric, "model": model, "variant": variant, "target": target}
    sides = measurements.parse_sides(old, new, **names, disturbed=disturbed)
    run_budget = interleaved.parse_budget(budget) if run else None
    with open_context() as context:
        if run_budget:
            both = sides.read(context.database)
            comparisons = interleaved.run_interleaved(context, both, sides.filters, margin, run_budget)
        else:
            comparisons = measurements.compare(context.database, sides, margin=margin, each_device=each_device)
    output_format.print_rows(
        [comparison_rows.to_json(comparison) for comparison in comparisons],
        comparison_rows.CSV_COLUMNS,
        lambda: comparison_rows.to_table(comparisons),
        "A and B share no device, workload and metric",
    )
