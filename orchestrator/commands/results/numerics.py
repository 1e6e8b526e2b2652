"""`haloctl numerics`."""

from functools import partial
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
    dispatches: Annotated[
        bool, typer.Option("--dispatches", help="Compare two programs dispatch by dispatch instead.")
    ] = False,
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """Show how far a program is from the reference, layer by layer; two programs side by side.

    `error` is what a layer adds wrongly, given its own input, relative to what it adds; `drift` is the distance of the
    hidden state from the reference's. Jobs with `numerics: {where: layers}` measure both; with `where: failed`, those
    that fail do. With `where: dispatches` programs of two toolchains, targets or sets of flags can be compared dispatch
    by dispatch, and the first that returns something else is named.
    """
    from jobs.errors import BadSetting
    from jobs.stages.localization import DISPATCHES, REPORT
    from orchestrator.artifacts import task_reports
    from orchestrator.context import open_context
    from orchestrator.views import dispatch_rows, layer_rows
    from orchestrator.views.formats import OutputFormat

    output_format = OutputFormat(json, csv)
    if len(names) > MOST:
        raise BadSetting("TASK|VARIANT", "compares at most two")
    with open_context() as context:
        file, noun = (DISPATCHES, "report of dispatches") if dispatches else (REPORT, "report of layers")
        reports = [task_reports.read_report(context, name, file, noun) for name in names]
    if dispatches:
        dispatch_rows.check_reports(names, reports)
        compared = dispatch_rows.rows_of(reports)
        table = partial(dispatch_rows.build_table, names, reports)
        output_format.print_rows(compared, dispatch_rows.COLUMNS, table, "")
        return
    layer_rows.check_reports(names, reports)
    rows = layer_rows.rows_of(names, reports)
    columns = layer_rows.csv_columns(names)
    output_format.print_rows(rows, columns, lambda: layer_rows.build_table(names, reports), "")
