"""Files of a remote store that this node has: bounded in size, the longest unused go first.

Agents and commands share it. A file that somebody fetches or places is locked, so that nobody removes it meanwhile.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import BadSetting
from jobs.task import Artifact
from workers.artifacts.shelf import READ_ONLY, expect_sha256
from workers.artifacts.stamps import DAY_S, Stamps
from workers.artifacts.streams import linked

VARIABLE = "HALOCTL_CACHE_GB"
SHARE_OF_DISK = 0.25  #: without that variable

Fetch = Callable[[Path], None]  #: brings a sound file there, or raises


@dataclass(frozen=True)
class _Kept:
    path: Path
    size_bytes: int
    used_at: float


class Cache:
    """`files/<sha256>`, `incoming/<size>-<sha256>` while they are fetched, `locks/`."""

    def __init__(self, folder: Path, stamps: Stamps, limit_bytes: int | None = None) -> None:
        """The limit is by default what the environment says; raises BadSetting where that is no number."""
        self.files, self.incoming, self._locks = folder / "files", folder / "incoming", folder / "locks"
        self._stamps = stamps
        self._limit_bytes = _limit_bytes(folder) if limit_bytes is None else limit_bytes

    @contextmanager
    def held(self, artifact: Artifact, fetch: Fetch) -> Iterator[Path]:
        """A context in which the file is here, verified within a day; it is fetched where it is not.

        `fetch` is given a path that is the same for the next try. It stays beyond the limit while it is held.
        """
        path = self.files / expect_sha256(artifact.sha256)
        with self._locked(artifact.sha256):
            if not self._is_sound(path, artifact):
                self.incoming.mkdir(parents=True, exist_ok=True)
                self.files.mkdir(parents=True, exist_ok=True)
                arriving = self.incoming / f"{artifact.size_bytes}-{artifact.sha256}"
                self.trim(0 if arriving.exists() else artifact.size_bytes)
                fetch(arriving)
                arriving.chmod(READ_ONLY)
                arriving.replace(path)
                self._stamps.note(artifact.sha256, path.stat())
            _touch(path)
            yield path
        self.trim()

    def adopt(self, file: Path, artifact: Artifact) -> None:
        """Keep a file that was made here, if that takes no copy."""
        path = self.files / expect_sha256(artifact.sha256)
        with self._locked(artifact.sha256), suppress(OSError):
            self.files.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.hardlink_to(file)
            path.chmod(READ_ONLY)
            self._stamps.note(artifact.sha256, path.stat())
            _touch(path)
        self.trim()

    def trim(self, wanted_bytes: int = 0) -> None:
        """Remove what was used longest ago until so much more fits; what is held stays."""
        with self._locked("trim"):
            incoming = list(_arriving(self.incoming))
            kept = sorted(_kept(self.files), key=lambda one: one.used_at)
            over = sum(one.size_bytes for one in (*kept, *incoming)) + wanted_bytes - self._limit_bytes
            stale = [one for one in incoming if one.used_at < time.time() - DAY_S]
            for one in (*stale, *kept):
                if over > 0 or one in stale:
                    over -= self._removed_bytes(one)

    def _removed_bytes(self, one: _Kept) -> int:
        sha256 = one.path.name[-64:]
        with self._locked(sha256, waits=False) as is_mine:
            if not is_mine:
                return 0
            one.path.unlink(missing_ok=True)
            self._stamps.forget(sha256)
            (self._locks / sha256).unlink(missing_ok=True)
        return one.size_bytes

    def _is_sound(self, path: Path, artifact: Artifact) -> bool:
        """Whether it is here as it should be; what is not is removed, for the store has it."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return False
        if self._stamps.is_sound(path, artifact, found):
            return True
        path.unlink()
        return False

    @contextmanager
    def _locked(self, name: str, *, waits: bool = True) -> Iterator[bool]:
        """Whether nobody else is in here with this name; with `waits` always so."""
        self._locks.mkdir(parents=True, exist_ok=True)
        lock = _lock(self._locks / name, waits=waits)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)


def place(source: Path, destination: Path) -> None:
    """Make a cached file appear elsewhere: a hard link, or a copy where that can't be, for it may leave the cache."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    if not linked(source, destination):
        shutil.copyfile(source, destination)
        destination.chmod(READ_ONLY)


def _limit_bytes(folder: Path, environ: Mapping[str, str] = os.environ) -> int:
    given = environ.get(VARIABLE)
    if given is None:
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        return int(shutil.disk_usage(there).total * SHARE_OF_DISK)
    try:
        size_gb = float(given)
        if not 0 <= size_gb < float("inf"):
            raise ValueError
    except ValueError:
        raise BadSetting(VARIABLE, f"should be a number of gigabytes, and is {given!r}") from None
    return int(size_gb * 1e9)


def _kept(folder: Path) -> Iterator[_Kept]:
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                found = entry.stat()
                yield _Kept(Path(entry.path), found.st_size, found.st_atime)


def _arriving(folder: Path) -> Iterator[_Kept]:
    """What is fetched, or was: it counts as whole."""
    for one in _kept(folder):
        with suppress(FileNotFoundError):
            yield _Kept(one.path, int(one.path.name.partition("-")[0]), one.path.stat().st_mtime)


def _touch(path: Path) -> None:
    """It is used now. Its time of change stays: by that it is known to be what was verified."""
    found = path.stat()
    os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))


def _lock(path: Path, *, waits: bool) -> int | None:
    """The file open and locked; another one, where it was removed by whoever had it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(lock)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        os.close(lock)
