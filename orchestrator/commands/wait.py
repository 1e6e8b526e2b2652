"""`haloctl wait`."""

import typer


def wait(
    job: str = typer.Argument(help="The job's id, or the start of it.", metavar="JOB"),
    timeout: float = typer.Option(None, "--timeout", help="Stop waiting after this many seconds.", min=0),
    json: bool = typer.Option(False, "--json", help="Answer with the matrix in JSON."),
) -> None:
    """Wait for a job; run it where nobody else does.

    Ends when nothing of the job is left that can run, and says what waits for what the cluster lacks.
    """
    from db import reports
    from orchestrator.context import opened
    from orchestrator.submitting import waiting

    with opened() as context:
        found = reports.job(context.database, job)
        waiting.wait_for(context, found.id, json=json, timeout_s=timeout, cancels_when_interrupted=False)
