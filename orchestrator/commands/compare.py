"""`haloctl compare`."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from db.runs import Chosen
    from orchestrator.context import Context
    from orchestrator.deciding.comparing import Compared

METRIC = "Its name or a pattern; without it all timings of a benchmark (ttft_ms, itl_ms, ...)."


def compare(
    old: str = typer.Argument(help="What is compared with: see below.", metavar="A"),
    new: str = typer.Argument(help="What is judged.", metavar="B"),
    metric: str = typer.Option(None, "--metric", help=METRIC),
    model: str = typer.Option(None, "--model", help="A model's name, or a pattern such as 'llama*'."),
    variant: str = typer.Option(None, "--variant", help="A variant's name or pattern."),
    target: str = typer.Option(None, "--target", help="cpu, mi300x, ..."),
    margin: float = typer.Option(2.0, "--margin", help="Up to so many percent are equivalent.", min=0.1, max=50),
    each_device: bool = typer.Option(False, "--each-device", help="A line for each device, rather than all in one."),
    disturbed: bool = typer.Option(False, "--disturbed", help="Also what something else disturbed."),
    run: bool = typer.Option(False, "--run", help="Measure both anew, in turns on one device, until it is decided."),
    budget: str = typer.Option("64", "--budget", help="With --run: at most so many runs (64), or so long (20m, 2h)."),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
    csv: bool = typer.Option(False, "--csv", help="Answer in CSV."),
) -> None:
    """Say whether B is faster or slower than A, equivalent, or how many more runs would tell.

    A and B are a job's id or the start of it, a task's or attempt's id, an engine (torch), a variant's name, a day
    (2026-11-20) or a time (2026-11-01..2026-11-08: until the end of that day; 7d..), or job:, variant:, toolchain:,
    engine:, model:, target:, node:, result: with a name or pattern; several are joined by commas: engine:torch,7d..

    Runs are paired by device, workload and metric. A run counts once, however many repetitions it has. Intervals are
    such that of a table's verdicts at most 1 in 100 comes from noise.

    With --run B may be A itself: that tells how this device scatters, which gates and comparisons know from then on.
    """
    from datetime import UTC, datetime

    from db.runs import Chosen
    from orchestrator.context import opened
    from orchestrator.deciding import selectors, sides

    now = datetime.now(UTC)
    common = sides.filtered(
        Chosen(selectors.metrics(metric)), model=model, variant=variant, target=target, disturbed=disturbed
    )
    chosen = [selectors.parse(text, common, now) for text in (old, new)]
    with opened() as context:
        if run:
            found = _raced(context, (old, new), chosen, margin, budget)
        else:
            both = [sides.read(context.database, text, one) for text, one in zip((old, new), chosen, strict=True)]
            found = sides.compared(context.database, both, margin, each_device=each_device, disturbed=disturbed)
    _print(found, json=json, csv=csv)


def _print(found: "list[Compared]", *, json: bool, csv: bool) -> None:
    from orchestrator import output
    from orchestrator.deciding import sides

    rows = [sides.as_row(cell) for cell in found]
    if json:
        output.as_json(rows)
    elif csv:
        output.as_csv(rows, sides.CSV_COLUMNS)
    else:
        output.table(sides.COLUMNS, map(sides.line, rows), right=sides.RIGHT)


def _raced(
    context: "Context", texts: tuple[str, str], chosen: "list[Chosen]", margin: float, budget: str
) -> "list[Compared]":
    from orchestrator.deciding import racing

    return racing.race(context, texts, chosen, margin, racing.budget_of(budget))
