"""`haloctl usage`."""

from typing import Annotated

import typer

from orchestrator.commands import options

DEFAULT_SINCE = "30d"


def usage(
    by: Annotated[
        str, typer.Option("--by", help="What to sum by: user, model, stage, node or job, or several: user,stage.")
    ] = "user",
    since: options.Since = DEFAULT_SINCE,
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """Sum up what attempts cost: device seconds, those of GPUs among them, and core seconds.

    Each attempt counts for as long as it held its devices, also one that runs. Time that machines lost and time of
    programs that failed stand apart, too. What is reused from earlier tasks costs nothing.
    """
    from datetime import UTC, datetime

    from db.reads.attempt_costs import attempt_costs
    from orchestrator import times
    from orchestrator.context import open_context
    from orchestrator.views import usage_rows
    from orchestrator.views.formats import OutputFormat, nothing_found

    output_format, groups, now = OutputFormat(json, csv), usage_rows.parse_groups(by), datetime.now(UTC)
    begin = times.parse_time(since or DEFAULT_SINCE, now)
    with open_context() as context:
        rows = usage_rows.sum_costs(attempt_costs(context.database, begin, now), groups)
    columns = (*groups, *usage_rows.COLUMNS)
    output_format.print_rows(
        rows, columns, lambda: usage_rows.build_table(rows, groups), nothing_found("attempts", since != DEFAULT_SINCE)
    )
