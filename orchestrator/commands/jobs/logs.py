"""`haloctl logs`."""

from typing import Annotated

import typer

from orchestrator.commands import options


def logs(
    name: options.TaskOrAttempt,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the task has ended.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print it as it is, with colours and control characters.")] = False,
) -> None:
    """Print the log of an attempt, or of a task's latest one.

    It works wherever the database can be reached: the head fetches logs from other machines. Colours are left out, and
    control characters are escaped, except with --raw.
    """
    from jobs.plain_text import readable_log
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.views import log_reader

    with open_context() as context:
        log = log_reader.read_log(context, name, follow=follow, notify=output.print_message)
        for text in log if raw else readable_log(log):
            output.print_raw(text)
