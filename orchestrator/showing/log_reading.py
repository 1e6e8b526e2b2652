"""Reading an attempt's log while it is written, and afterwards: on the machine where it runs, and on any other."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from db import reports
from db.imported import DIGEST
from db.reports import AttemptRow
from jobs.errors import ArtifactLost, NothingToDo, StorageUnusable
from jobs.state import ENDED
from orchestrator.context import Context
from orchestrator.leading.bell import Bell
from workers.folders import log_path

LOOK_S = 0.1  #: a file tells nobody that it has grown
WATCH_S = 1.0
FOLLOW_S = 30.0  #: how long a head fetches a log after it was last asked to
FETCH_S = 5.0  #: how long it may take until something of a log has come
CHUNK_BYTES = 1 << 16

Say = Callable[[str], None]


def read(context: Context, name: str, *, follow: bool, say: Say) -> Iterator[str]:
    """The text of a task's latest attempt's log, or of one attempt's.

    With `follow` until the attempt has ended; of a task until that has, through all the attempts that it may take.
    `say` is told what can't be read here.
    """
    bell = Bell()
    with context.database.watch(bell.ring):
        attempt = _attempt_of(context, name, bell, waits=follow)
        while True:
            yield from Log(context, attempt, bell, say).read(follow=follow)
            if not follow or name.count("-") == 2:
                return
            following = _next_attempt(context, name, attempt, bell)
            if following is None:
                return
            say(f"attempt {attempt} has ended; {following} follows")
            attempt = following


def _attempt_of(context: Context, name: str, bell: Bell, *, waits: bool) -> str:
    if name.count("-") == 2:
        return reports.attempt(context.database, name).id
    while True:
        task = reports.task(context.database, name)
        if task.attempt is not None:
            return task.attempt
        if not waits or task.state in ENDED or task.is_stuck:
            why = task.waits_for or task.blocked_by or task.state
            raise NothingToDo(f"task {task.id} has not run, so there is no log: {why}")
        bell.wait(WATCH_S)


def _next_attempt(context: Context, name: str, attempt: str, bell: Bell) -> str | None:
    """The attempt of a task that comes after one; None when the task has ended, or waits for what is not there."""
    while True:
        task = reports.task(context.database, name)
        if task.attempt != attempt:
            return task.attempt
        if task.state in ENDED or task.is_stuck:
            return None
        bell.wait(WATCH_S)


class Log:
    """One attempt's log. It is read from its file where that is, else as heads fetch it, at last from the store."""

    def __init__(self, context: Context, attempt: str, bell: Bell, say: Say) -> None:
        self._context, self._attempt, self._bell, self._say = context, attempt, bell, say
        self._file = log_path(context.settings.data, attempt)
        self._position = 0  #: in bytes, up to which it was read
        self._last_offset = -1  #: of what was fetched
        self._ask_at = 0.0

    def read(self, *, follow: bool) -> Iterator[str]:
        """What there is of it; with `follow` until the attempt has ended."""
        give_up_at = time.monotonic() + FETCH_S
        while True:
            row = reports.attempt(self._context.database, self._attempt)
            is_here = self._file.exists()
            yield from _from(self._file, self._position, self._moved) if is_here else self._fetched(row)
            if row.ended_at is not None:
                yield from () if is_here else self._rest(row)
                return
            if not follow and (is_here or self._position):
                return
            if not follow and time.monotonic() > give_up_at:
                self._say(f"nothing of its log came from {row.node} yet; -f waits for it")
                return
            self._bell.wait(LOOK_S if is_here else WATCH_S)

    def _moved(self, count: int) -> None:
        self._position += count

    def _fetched(self, row: AttemptRow) -> Iterator[str]:
        """What the head fetched since the last time; it is asked to go on."""
        if row.ended_at is None and time.monotonic() >= self._ask_at:
            self._context.store.follow_log(self._attempt, FOLLOW_S)
            self._ask_at = time.monotonic() + FOLLOW_S / 3
        for chunk in reports.log_chunks(self._context.database, self._attempt, self._last_offset):
            self._last_offset = chunk.offset
            self._position = chunk.offset + len(chunk.text.encode())
            yield chunk.text

    def _rest(self, row: AttemptRow) -> Iterator[str]:
        """What the log of an ended attempt holds beyond what was read."""
        kept = next((artifact for artifact in row.artifacts if artifact.kind == "log"), None)
        if kept is not None and self._position >= kept.size_bytes:
            return
        if kept is not None:
            with suppress(ArtifactLost, StorageUnusable):
                yield from _from(self._context.artifacts.local(kept), self._position, self._moved)
                return
        tail = row.failure.log_tail if row.failure else ""
        if row.digest.startswith(DIGEST):
            self._say(f"{row.id} was imported: it has no log")
            return
        where = "the artifact store, which can't be read here" if kept else f"the data folder of {row.node}"
        self._say(f"the log of {row.id} lies in {where}" + ("; this is its end:" if tail else ""))
        if tail:
            yield tail.rstrip("\n") + "\n"


def _from(path: Path, position: int, moved: Callable[[int], None]) -> Iterator[str]:
    """What a file holds beyond `position`, in chunks; `moved` is told of the bytes of each."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(position)
        while chunk := file.read(CHUNK_BYTES):
            moved(len(chunk))
            yield chunk.decode(errors="replace")
