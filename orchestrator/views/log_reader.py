"""Reading an attempt's log, while it is written and afterwards, on the machine where it runs and on any other."""

import math
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from db.reads import reports
from db.reads.reports import AttemptRow
from db.schema.imported import DIGEST
from jobs.errors import ArtifactLost, DatabaseReadOnly, NothingToDo, StorageUnusable
from jobs.state import ENDED
from orchestrator.context import Context
from orchestrator.leader.wakeup import WakeupEvent
from workers.attempts.folders import log_path

FILE_POLL_S = 0.1  #: a file gives no notice when it grows
DATABASE_POLL_S = 1.0
FETCH_REQUEST_S = 30.0  #: how long a head fetches a log after the last request
FIRST_CHUNK_S = 5.0  #: how long to wait for the first chunk of a fetched log
READ_BYTES = 1 << 16

Notify = Callable[[str], None]


def read_log(context: Context, name: str, *, follow: bool, notify: Notify) -> Iterator[str]:
    """Yield the log of an attempt, or of a task's latest attempt.

    With `follow` it ends with the attempt, or with the task and all its further attempts. `notify` gets messages about
    what can't be read on this machine.
    """
    wakeup = WakeupEvent()
    with context.database.monitor_changes(wakeup.set):
        if trace := _trace_without_attempt(context, name):
            yield trace
            return
        attempt = _find_attempt(context, name, wakeup, waits=follow)
        while True:
            yield from _LogReader(context, attempt, wakeup, notify).read(follow=follow)
            if not follow or name.count("-") == 2:
                return
            next_attempt = _next_attempt(context, name, attempt, wakeup)
            if next_attempt is None:
                return
            notify(f"attempt {attempt} has ended; {next_attempt} follows")
            attempt = next_attempt


def _trace_without_attempt(context: Context, name: str) -> str:
    """Return the log of a task that failed before an attempt could be made; empty if it has none."""
    task = None if name.count("-") == 2 else reports.task(context.database, name)
    if task is None or task.failure is None or not task.has_failed_before or not task.failure.log_tail:
        return ""
    return f"{task.failure.log_tail.rstrip()}\n"


def _find_attempt(context: Context, name: str, wakeup: WakeupEvent, *, waits: bool) -> str:
    if name.count("-") == 2:
        return reports.attempt(context.database, name).id
    while True:
        task = reports.task(context.database, name)
        if task.attempt is not None:
            return task.attempt
        if not waits or task.state in ENDED or task.is_unschedulable:
            reason = task.waits_for or task.blocked_by or task.state
            raise NothingToDo(f"task {task.id} has not run, so it has no log: {reason}")
        wakeup.wait(DATABASE_POLL_S)


def _next_attempt(context: Context, name: str, attempt: str, wakeup: WakeupEvent) -> str | None:
    """Wait for a task's next attempt; return None when the task has ended or is unschedulable."""
    while True:
        task = reports.task(context.database, name)
        if task.attempt != attempt:
            return task.attempt
        if task.state in ENDED or task.is_unschedulable:
            return None
        wakeup.wait(DATABASE_POLL_S)


class _LogReader:
    """Reads one attempt's log from its file on this machine, else from chunks that a head fetches, else the store."""

    def __init__(self, context: Context, attempt: str, wakeup: WakeupEvent, notify: Notify) -> None:
        self._context, self._attempt, self._wakeup, self._notify = context, attempt, wakeup, notify
        self._file = log_path(context.settings.data, attempt)
        self._position_bytes = 0  #: up to which the log was read
        self._last_offset = -1  #: of the fetched chunks
        self._next_request_at = 0.0

    def read(self, *, follow: bool) -> Iterator[str]:
        """Yield what the log contains; with `follow`, until the attempt has ended."""
        give_up_at = time.monotonic() + FIRST_CHUNK_S
        while True:
            row = reports.attempt(self._context.database, self._attempt)
            is_local = self._file.exists()
            yield from self._read_file(self._file) if is_local else self._read_chunks(row)
            if row.ended_at is not None:
                yield from () if is_local else self._read_rest(row)
                return
            if not follow and (is_local or self._position_bytes):
                return
            if not follow and time.monotonic() > give_up_at:
                self._notify(f"the log is not yet fetched from {row.node}: use -f to wait for it")
                return
            self._wakeup.wait(FILE_POLL_S if is_local else DATABASE_POLL_S)

    def _read_file(self, path: Path) -> Iterator[str]:
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(self._position_bytes)
            decoder = getincrementaldecoder("utf-8")(errors="replace")
            while chunk := file.read(READ_BYTES):
                self._position_bytes += len(chunk)
                yield decoder.decode(chunk)
            yield decoder.decode(b"", final=True)

    def _read_chunks(self, row: AttemptRow) -> Iterator[str]:
        """Yield the chunks that the head has fetched since the last call, and request more."""
        if row.ended_at is None and time.monotonic() >= self._next_request_at:
            self._next_request_at = time.monotonic() + FETCH_REQUEST_S / 3
            try:
                self._context.store.follow_log(self._attempt, FETCH_REQUEST_S)
            except DatabaseReadOnly:
                self._notify("only what others follow is shown: you may only read the database")
                self._next_request_at = math.inf
        for chunk in reports.log_chunks(self._context.database, self._attempt, self._last_offset):
            self._last_offset = chunk.offset
            self._position_bytes = chunk.offset + len(chunk.text.encode())
            yield chunk.text

    def _read_rest(self, row: AttemptRow) -> Iterator[str]:
        """Yield what the log of an ended attempt contains beyond the position."""
        log = next((artifact for artifact in row.artifacts if artifact.kind == "log"), None)
        if log is not None:
            if self._position_bytes >= log.size_bytes:
                return
            with suppress(ArtifactLost, StorageUnusable):
                yield from self._read_file(self._context.artifacts.local(log))
                return
        if row.digest.startswith(DIGEST):
            self._notify(f"{row.id} was imported: it has no log")
            return
        tail = row.failure.log_tail.rstrip("\n") if row.failure else ""
        place = "the artifact store, which can't be read here" if log else f"the data folder of {row.node}"
        self._notify(f"the log of {row.id} is in {place}" + ("; its last lines:" if tail else ""))
        if tail:
            yield f"{tail}\n"
