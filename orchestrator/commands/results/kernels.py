"""`haloctl kernels`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 2  #: side by side


def kernels(
    names: Annotated[
        list[str],
        typer.Argument(
            help="One or two: a task of the stage analyse, or a variant, with :TARGET behind it where it has several.",
            metavar="TASK|VARIANT...",
        ),
    ],
    entry: Annotated[
        str | None, typer.Option("--entry", help="An entry point, or how its name begins: prefill, decode_bs4.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", help="At most this many kernels of each; 0 for all.", min=0, max=options.MAX_NUMBER)
    ] = 20,
    json: options.Json = False,
) -> None:
    """Show what the kernels of a compiled program must cost and what they take; what changed between two programs.

    The floor is the least time that a device needs for a kernel's arithmetic or memory traffic, by its peaks. Of two
    programs, such as those of two toolchains or sets of flags, dispatches are paired by what they compute, and those
    that differ are shown. Jobs with the stage analyse have the reports; no device is needed.
    """
    from jobs.errors import BadSetting
    from jobs.stages.analyse import REPORT
    from orchestrator.artifacts import task_reports
    from orchestrator.context import open_context
    from orchestrator.views import kernel_rows

    if len(names) > MOST:
        raise BadSetting("TASK|VARIANT", "compares at most two")
    what = "report of kernels (of the stage analyse)"
    with open_context() as context:
        reports = [task_reports.read_report(context, name, REPORT, what) for name in names]
    reports = [kernel_rows.select_entries(report, entry) for report in reports]
    if len(reports) == 1:
        _print_report(reports[0], top, json=json)
    else:
        _print_changes(names, reports, top, json=json)


def _print_report(report: "Mapping[str, Any]", top: int, *, json: bool) -> None:
    from orchestrator import output
    from orchestrator.views import kernel_rows

    if json:
        output.print_json(report)
        return
    for name in report["entries"]:
        for line in kernel_rows.summary(report, name):
            output.print_line(line)
        output.print_table(kernel_rows.build_table(report, name, top))
        output.print_line("")
    for line in kernel_rows.legend(report):
        output.print_line(line)


def _print_changes(names: list[str], reports: "list[Mapping[str, Any]]", top: int, *, json: bool) -> None:
    from jobs.errors import BadSetting
    from orchestrator import output
    from orchestrator.analysis.kernel_changes import compare_reports
    from orchestrator.views import kernel_rows

    changes = compare_reports(*reports)
    if not changes:
        raise BadSetting(" and ".join(names), "have no entry point in common: compare programs of one model")
    if json:
        output.print_json([kernel_rows.change_to_json(change) for change in changes])
        return
    for number, change in enumerate(changes):
        if number:
            output.print_line("")
        for line in kernel_rows.change_summary(change):
            output.print_line(line)
        if change.kernels:
            output.print_table(kernel_rows.build_change_table(change, top))
