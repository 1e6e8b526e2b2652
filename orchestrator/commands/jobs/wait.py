"""`haloctl wait`."""

from typing import Annotated

import typer

from orchestrator.commands import options


def wait(
    job: Annotated[str, typer.Argument(help="Id of a job, or a unique prefix.", metavar="JOB")],
    timeout: options.Timeout = None,
    json: options.Json = False,
) -> None:
    """Wait for a job, and run it when no head does.

    It ends when no task of the job can run any more, reports tasks that can't be placed, and prints the matrix.
    """
    from db.reads import reports
    from orchestrator.context import open_context
    from orchestrator.follow import waiting

    with open_context() as context:
        job_id = reports.job(context.database, job).id
        waiting.wait_for(context, job_id, json=json, timeout_s=timeout, cancels_when_interrupted=False)
