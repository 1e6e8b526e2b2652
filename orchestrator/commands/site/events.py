"""`haloctl events`."""

from typing import Annotated

import typer

from orchestrator.commands import options


def events(
    job: options.Job = None,
    node: Annotated[
        str | None, typer.Option("--node", help="Name of a node: its attempts, and what was done to it.")
    ] = None,
    since: options.Since = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", help="At most this many, the latest ones; 0 for all.", min=0, max=options.MAX_NUMBER
        ),
    ] = 100,
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """List what happened, in the order of time: who lost what, when and why.

    Events are changes of tasks' states with their failures, nodes that came up and went down, and what people did to
    nodes, files, schedules and old jobs.
    """
    from datetime import UTC, datetime

    from db.reads.events import EventFilter, read_events
    from orchestrator import times
    from orchestrator.context import open_context
    from orchestrator.views import event_rows
    from orchestrator.views.formats import OutputFormat, nothing_found

    output_format = OutputFormat(json, csv)
    start = times.parse_time(since, datetime.now(UTC)) if since else None
    with open_context() as context:
        rows = read_events(context.database, EventFilter(job, node, start, limit=limit or None))
    message = nothing_found("events", job, node, since)
    output_format.print_rows(
        [event_rows.to_json(row) for row in rows], event_rows.COLUMNS, lambda: event_rows.build_table(rows), message
    )
