"""A node's cache of a remote store: bounded in size, the least recently used files are evicted first.

Agents and commands share it. A file that somebody fetches or places is locked, so that nobody evicts it meanwhile.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from jobs.errors import BadSetting
from jobs.task import Artifact
from workers.artifacts.backend import READ_ONLY, expect_sha256
from workers.artifacts.streams import try_hard_link
from workers.artifacts.verification_cache import DAY_S, VerificationCache

VARIABLE = "HALOCTL_CACHE_GB"
DEFAULT_SHARE_OF_DISK = 0.25  #: without that variable

Fetch = Callable[[Path], None]  #: writes a sound file to a path, or raises


@dataclass(frozen=True)
class _CachedFile:
    path: Path
    size_bytes: int
    used_at: float


class ArtifactCache:
    """`files/<sha256>`; `incoming/<size>-<sha256>` while they are fetched; `locks/`."""

    def __init__(self, folder: Path, verified: VerificationCache, limit_bytes: int | None = None) -> None:
        """The default limit is the environment's; raises BadSetting where that is not a number."""
        self.files, self.incoming, self._locks = folder / "files", folder / "incoming", folder / "locks"
        self._verified = verified
        self._limit_bytes = _limit_bytes(folder) if limit_bytes is None else limit_bytes

    @contextmanager
    def hold(self, artifact: Artifact, fetch: Fetch) -> Iterator[Path]:
        """A context in which the file is in the cache, verified within a day; it is fetched if necessary.

        `fetch` is given the same path at each try. The file stays while it is held, even beyond the limit.
        """
        path = self.files / expect_sha256(artifact.sha256)
        with self._locked(artifact.sha256):
            if not self._is_sound(path, artifact):
                self.incoming.mkdir(parents=True, exist_ok=True)
                self.files.mkdir(parents=True, exist_ok=True)
                incoming = self.incoming / f"{artifact.size_bytes}-{artifact.sha256}"
                self.evict(0 if incoming.exists() else artifact.size_bytes)
                fetch(incoming)
                incoming.chmod(READ_ONLY)
                incoming.replace(path)
                self._verified.record(artifact.sha256, path.stat())
            _touch(path)
            yield path
        self.evict()

    def adopt(self, file: Path, artifact: Artifact) -> None:
        """Add a file that was made on this node, if a hard link can do that."""
        path = self.files / expect_sha256(artifact.sha256)
        with self._locked(artifact.sha256), suppress(OSError):
            self.files.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.hardlink_to(file)
            path.chmod(READ_ONLY)
            self._verified.record(artifact.sha256, path.stat())
            _touch(path)
        self.evict()

    def evict(self, needed_bytes: int = 0) -> None:
        """Remove the least recently used files until `needed_bytes` more fit; what is held stays.

        Downloads that nobody has continued for a day are removed too.
        """
        with self._locked("trim"):
            incoming = list(_incoming_files(self.incoming))
            cached = sorted(_cached_files(self.files), key=lambda file: file.used_at)
            excess_bytes = sum(file.size_bytes for file in (*cached, *incoming)) + needed_bytes - self._limit_bytes
            abandoned = [file for file in incoming if file.used_at < time.time() - DAY_S]
            for file in (*abandoned, *cached):
                if excess_bytes > 0 or file in abandoned:
                    excess_bytes -= self._remove(file)

    def _remove(self, file: _CachedFile) -> int:
        """Remove a file unless somebody holds it; returns the bytes freed."""
        sha256 = file.path.name[-64:]
        try:
            with self._locked(sha256, timeout_s=0):
                file.path.unlink(missing_ok=True)
                self._verified.forget(sha256)
                (self._locks / sha256).unlink(missing_ok=True)
        except Timeout:
            return 0
        return file.size_bytes

    def _is_sound(self, path: Path, artifact: Artifact) -> bool:
        """Whether the cache has the file as it should be; a damaged one is removed, for the store has it."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return False
        if self._verified.is_sound(path, artifact, stat):
            return True
        path.unlink()
        return False

    def _locked(self, name: str, timeout_s: float = -1) -> FileLock:
        """An exclusive lock between processes and threads. A lock file may be removed by whoever holds it."""
        self._locks.mkdir(parents=True, exist_ok=True)
        return FileLock(self._locks / name, timeout=timeout_s, poll_interval=0.01)


def place(source: Path, destination: Path) -> None:
    """Make a cached file appear elsewhere: by a hard link, else a copy, since it may be evicted."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    if not try_hard_link(source, destination):
        shutil.copyfile(source, destination)
        destination.chmod(READ_ONLY)


def _limit_bytes(folder: Path, environ: Mapping[str, str] = os.environ) -> int:
    text = environ.get(VARIABLE)
    if text is None:
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        return int(shutil.disk_usage(existing).total * DEFAULT_SHARE_OF_DISK)
    try:
        size_gb = float(text)
        if not 0 <= size_gb < float("inf"):
            raise ValueError
    except ValueError:
        raise BadSetting(VARIABLE, f"should be a number of gigabytes, and is {text!r}") from None
    return int(size_gb * 1e9)


def _cached_files(folder: Path) -> Iterator[_CachedFile]:
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                stat = entry.stat()
                yield _CachedFile(Path(entry.path), stat.st_size, stat.st_atime)


def _incoming_files(folder: Path) -> Iterator[_CachedFile]:
    """Yield files that are being fetched, or were; each counts with its final size."""
    for file in _cached_files(folder):
        with suppress(FileNotFoundError):
            yield _CachedFile(file.path, int(file.path.name.partition("-")[0]), file.path.stat().st_mtime)


def _touch(path: Path) -> None:
    """Set the time of last use. The time of last change stays: by that a verified file is recognised."""
    os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
