"""Tells where a server answers, as soon as its log says so."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from db.reads import reports
from jobs.errors import HaloError
from orchestrator import output
from orchestrator.context import Context, open_context
from orchestrator.submission.serving import SERVER
from orchestrator.views import log_reader

ADDRESS = re.compile(r"^serving at (\S+)$", re.MULTILINE)


@contextmanager
def announced(context: Context, job: str, *, json: bool) -> Iterator[None]:
    """Print the address of a job's server while the context lasts, each time that the server starts."""
    (task,) = (task.id for task in reports.tasks(context.database, job) if task.stage == SERVER)
    thread = threading.Thread(target=_announce, args=(task, json), daemon=True)
    thread.start()
    yield


def _announce(task: str, json: bool) -> None:
    with open_context() as context:
        text = ""
        try:
            for part in log_reader.read_log(context, task, follow=True, notify=output.print_message):
                lines, _, text = (text + part).rpartition("\n")
                for match in ADDRESS.finditer(lines):
                    _print(match[1], task, json=json)
        except HaloError:
            return  # it never started: the command says why


def _print(url: str, task: str, *, json: bool) -> None:
    if json:
        output.print_json({"url": url, "task": task})
    else:
        output.print_line(url)
