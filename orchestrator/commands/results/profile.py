"""`haloctl profile`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from collections.abc import Mapping

DIFF = "diff"
MOST = 2  #: side by side


def profile(
    names: Annotated[
        list[str],
        typer.Argument(
            help="A task of the stage profile, or a variant, with :TARGET behind it where it has several; or diff and "
            "two of them.",
            metavar="[diff] TASK|VARIANT...",
        ),
    ],
    top: Annotated[
        int, typer.Option("--top", help="At most this many kernels of each; 0 for all.", min=0, max=options.MAX_NUMBER)
    ] = 12,
    json: options.Json = False,
) -> None:
    """Show how long each kernel of a program took, with the most to win first; or what differs between two programs.

    What is to win is the time beyond a kernel's floor. `diff` pairs the kernels of two programs by what they compute.
    Jobs with the stage profile have the reports.
    """
    from jobs.errors import BadSetting
    from jobs.stages.profile import REPORT
    from orchestrator.artifacts import task_reports
    from orchestrator.context import open_context

    is_diff = len(names) > 1
    names = names[1:] if is_diff and names[0] == DIFF else names
    if len(names) != (MOST if is_diff else 1):
        raise BadSetting("TASK|VARIANT", "takes one, or diff and two of them")
    what = "profile (of the stage profile)"
    with open_context() as context:
        reports = [task_reports.read_report(context, name, REPORT, what) for name in names]
    if is_diff:
        _print_changes(names, reports, top, json=json)
    else:
        _print_report(reports[0], top, json=json)


def _print_report(report: "Mapping[str, Any]", top: int, *, json: bool) -> None:
    from orchestrator import output
    from orchestrator.views import profile_rows
    from workers.llm.kernels.profile_table import summary_of

    if json:
        output.print_json(report)
        return
    for name, entry in report["entries"].items():
        for line in summary_of(name, entry):
            output.print_line(line)
        output.print_table(profile_rows.build_table(report, name, top))
        output.print_line("")
    for line in profile_rows.legend(report):
        output.print_line(line)


def _print_changes(names: list[str], reports: "list[Mapping[str, Any]]", top: int, *, json: bool) -> None:
    from jobs.errors import BadSetting
    from orchestrator import output
    from orchestrator.analysis.profile_changes import compare_profiles
    from orchestrator.views import profile_rows

    changes = compare_profiles(*reports)
    if not changes:
        raise BadSetting(" and ".join(names), "have no entry point in common: compare programs of one workload")
    if json:
        output.print_json([profile_rows.change_to_json(change) for change in changes])
        return
    for number, change in enumerate(changes):
        if number:
            output.print_line("")
        output.print_line(profile_rows.change_summary(change))
        output.print_table(profile_rows.build_change_table(change, top))
