"""`haloctl logs`."""

import typer


def logs(
    name: str = typer.Argument(help="A task's or an attempt's id, or the start of it.", metavar="TASK|ATTEMPT"),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on until the task has ended."),
) -> None:
    """Print the log of a task's latest attempt.

    Anywhere that the database can be reached: the head fetches what runs on other machines.
    """
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import log_reading

    with opened() as context:
        for text in log_reading.read(context, name, follow=follow, say=output.note):
            output.raw(text)
