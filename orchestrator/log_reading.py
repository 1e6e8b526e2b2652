"""Reading an attempt's log while it is written, and afterwards."""

import time
from collections.abc import Iterator
from pathlib import Path

from db import reports
from jobs.errors import NothingToDo
from jobs.state import ENDED
from orchestrator.context import Context
from workers.folders import log_path

POLL_S = 0.1
CHUNK_BYTES = 1 << 16


def read(context: Context, name: str, *, follow: bool) -> Iterator[str]:
    """The text of a task's latest attempt's log, or of one attempt's; with `follow` until the attempt has ended."""
    attempt = _attempt_of(context, name, wait=follow)
    path = log_path(context.settings.data, attempt)
    position = 0
    while True:
        is_over = not follow or reports.attempt(context.database, attempt).ended_at is not None
        for chunk in _from(path, position):
            position += len(chunk)
            yield chunk.decode(errors="replace")
        if is_over:
            return
        time.sleep(POLL_S)


def _attempt_of(context: Context, name: str, *, wait: bool) -> str:
    if name.count("-") == 2:
        return reports.attempt(context.database, name).id
    while True:
        task = reports.task(context.database, name)
        if task.attempt is not None:
            return task.attempt
        if not wait or task.state in ENDED or task.is_stuck:
            why = task.waits_for or task.blocked_by or task.state
            raise NothingToDo(f"task {task.id} has not run, so there is no log: {why}")
        time.sleep(POLL_S)


def _from(path: Path, position: int) -> Iterator[bytes]:
    """What a file holds beyond `position`, in chunks."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except FileNotFoundError:
        return
