"""The sha256 of files that others may change at any time, read again only when something about them has changed.

A file is recognised by device, inode, size, mtime and ctime, which no program can set back. These times tick every few
milliseconds, so a file that changed a moment ago is read again whatever they are (git calls such files racy).
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from workers.artifacts.streams import read_blocks
from workers.durability import boot_id, write_atomically

MIN_RECORDED_BYTES = 1 << 20  #: reading a smaller file takes less time than recording that it was read
SETTLED_NS = (
    2_000_000_000  #: the age from which a file's times tell every change; the coarsest file systems tick as slowly
)
LOCK_POLL_S = 0.5


class Unsteady(Exception):
    """A file changed while it was read."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.file = file


class Stopped(Exception):
    """Whoever wanted the digests does not want them any more."""


@dataclass(frozen=True)
class FileContent:
    """A file's content, and what would tell that it has changed since."""

    sha256: str
    identity: str


def identity_of(file: Path) -> str:
    """Return what changes whenever a file's content does; for a symbolic link also whenever the link does."""
    return " ".join(_identity(stat) for stat in ([file.lstat()] if file.is_symlink() else []) + [file.stat()])


def _identity(stat: os.stat_result) -> str:
    return f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"


class ContentDigests:
    """Digests of files, remembered in a folder that processes may share: each file is read by one of them at a time."""

    def __init__(self, folder: Path) -> None:
        """Nothing is created before something is remembered; a folder that can't be written only costs time."""
        self._folder = folder

    def read(self, file: Path, should_stop: Callable[[], bool] = lambda: False) -> FileContent:
        """Return a file's content; raises Unsteady, Stopped when `should_stop` says so, and OSError."""
        if file.stat().st_size < MIN_RECORDED_BYTES:
            return _hash(file, should_stop)
        entry = self._folder / hashlib.sha256(os.fsencode(file.absolute())).hexdigest()
        with self._locked(entry, should_stop):
            identity = identity_of(file)
            if (sha256 := _recorded(entry, identity)) is not None:
                return FileContent(sha256, identity)
            began_ns = time.time_ns()
            content = _hash(file, should_stop)
            if began_ns - file.stat().st_ctime_ns >= SETTLED_NS:
                _record(entry, content)
            return content

    @contextmanager
    def _locked(self, entry: Path, should_stop: Callable[[], bool]) -> Iterator[None]:
        try:
            (self._folder / "locks").mkdir(parents=True, exist_ok=True)
        except OSError:
            yield
            return
        lock = FileLock(self._folder / "locks" / entry.name)
        while True:
            with suppress(Timeout):
                lock.acquire(timeout=LOCK_POLL_S)
                break
            if should_stop():
                raise Stopped
        try:
            yield
        finally:
            lock.release()


def _hash(file: Path, should_stop: Callable[[], bool]) -> FileContent:
    identity = identity_of(file)
    digest = hashlib.sha256()
    for block in read_blocks(file):
        if should_stop():
            raise Stopped
        digest.update(block)
    if identity_of(file) != identity:
        raise Unsteady(file)
    return FileContent(digest.hexdigest(), identity)


def _recorded(entry: Path, identity: str) -> str | None:
    """Return the sha256 that was recorded for a file with this identity."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        fields = json.loads(entry.read_text())
        is_same = (fields["boot"], fields["identity"]) == (boot_id(), identity)  # a power cut may have changed content
        return str(fields["sha256"]) if is_same else None
    return None


def _record(entry: Path, content: FileContent) -> None:
    with suppress(OSError):  # without the entry the file is only read once more
        fields = {"boot": boot_id(), "sha256": content.sha256, "identity": content.identity}
        write_atomically(entry, json.dumps(fields))
