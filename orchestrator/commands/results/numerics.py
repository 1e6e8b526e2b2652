"""`haloctl numerics`."""

from typing import Annotated

import typer

from orchestrator.commands import options

MOST = 2  #: side by side


def numerics(
    names: Annotated[
        list[str],
        typer.Argument(
            help="One or two: a task of the stage numerics, or a variant, with :TARGET behind it where it has several.",
            metavar="TASK|VARIANT...",
        ),
    ],
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """Show how far a program is from the reference, layer by layer; two programs side by side.

    `error` is what a layer adds wrongly, given its own input, relative to what it adds; `drift` is the distance of the
    hidden state from the reference's. Jobs with `numerics: {where: layers}` measure both; with `where: failed`, those
    that fail do.
    """
    from jobs.errors import BadSetting
    from jobs.stages.localization import REPORT
    from orchestrator.artifacts import task_reports
    from orchestrator.context import open_context
    from orchestrator.views import layer_rows
    from orchestrator.views.formats import OutputFormat

    output_format = OutputFormat(json, csv)
    if len(names) > MOST:
        raise BadSetting("TASK|VARIANT", "compares at most two")
    with open_context() as context:
        reports = [task_reports.read_report(context, name, REPORT, "report of layers") for name in names]
    layer_rows.check_reports(names, reports)
    rows = layer_rows.rows_of(names, reports)
    columns = layer_rows.csv_columns(names)
    output_format.print_rows(rows, columns, lambda: layer_rows.build_table(names, reports), "")
