"""`haloctl results`."""

import typer


def results(
    model: str = typer.Option(None, "--model", help="A model's name, or a pattern such as 'llama*'."),
    variant: str = typer.Option(None, "--variant", help="A variant's name or pattern."),
    target: str = typer.Option(None, "--target", help="cpu, mi300x, ..."),
    metric: str = typer.Option(None, "--metric", help="ttft_ms, itl_ms, perplexity, ...; a wrong one lists them all."),
    since: str = typer.Option(
        None, "--since", help="A date or time (2026-11-20, 2026-11-20T08:00), or an age: 90m, 12h, 7d."
    ),
    job: str = typer.Option(None, "--job", help="A job's id, or the start of it."),
    limit: int = typer.Option(0, "--limit", "-n", help="At most so many, newest first; 0 for all.", min=0),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
    csv: bool = typer.Option(False, "--csv", help="Answer in CSV."),
) -> None:
    """Print measurements, newest first.

    In JSON and CSV each has its samples and what it was measured under.
    """
    from datetime import UTC, datetime

    from db.results import results as read
    from jobs.errors import BadSetting
    from jobs.metrics import METRICS
    from orchestrator import output, rows
    from orchestrator.context import opened

    if metric is not None and metric not in METRICS:
        raise BadSetting("--metric", f"no metric is called {metric!r}: there are {', '.join(METRICS)}")
    begin = rows.point_in_time(since, datetime.now(UTC)) if since else None
    with opened() as context:
        found = [
            rows.result(row)
            for row in read(
                context.database,
                job=job,
                model=model,
                variant=variant,
                target=target,
                metric=metric,
                since=begin,
                limit=limit or None,
            )
        ]
    if json:
        output.as_json(found)
    elif csv:
        output.as_csv(found, rows.RESULT_COLUMNS)
    elif not found:
        output.note("no measurements match")
    else:
        output.table(
            ("variant", "target", "metric", "median", "samples", "batch", "prompt", "job", "when"),
            [rows.result_line(row) for row in found],
            right=("median", "samples", "batch", "prompt"),
        )
