"""haloctl for programs in Python.

    from haloctl import Client

    with Client() as client:  # the database of this machine's settings, or HALOCTL_SERVER
        job = client.submit("demo")
        job.wait()
        print(job.matrix())
        frame = client.results(metric="itl_ms").to_pandas()

Answers are the objects that commands print with `--json`; errors are subclasses of `HaloError`.
"""

from jobs.errors import Conflict, HaloError, JobFileError, NotFound, NothingToDo, Unreachable, UserError
from jobs.state import JobState
from orchestrator.client.client import Client, Job
from orchestrator.client.rows import Rows

__all__ = [
    "Client",
    "Conflict",
    "HaloError",
    "Job",
    "JobFileError",
    "JobState",
    "NotFound",
    "NothingToDo",
    "Rows",
    "Unreachable",
    "UserError",
]
