"""Which files were verified recently, so that a large one is not read whole each time that it is used."""

import os
import time
from contextlib import suppress
from pathlib import Path

from jobs.paths import path_part
from jobs.task import Artifact
from workers.artifacts.streams import sha256_of
from workers.durability import boot_id, write_atomically

DAY_S = 24 * 3600.0
MIN_RECORDED_BYTES = 1 << 20  #: reading a smaller file takes less time than recording that it was read


class VerificationCache:
    """Remembers files that were verified since this machine started, by device, inode, size and time of last change.

    A power cut may leave other content in a file with the same size and times: all files are read again after it.

    Not by ctime: each hard link that comes and goes changes that.
    """

    def __init__(self, folder: Path | None) -> None:
        """Entries are kept in `folder`; without one, as long as this object lives."""
        self._folder = folder
        self._entries: dict[str, tuple[str, float]] = {}

    def is_sound(self, file: Path, artifact: Artifact, stat: os.stat_result) -> bool:
        """Whether a file with this `stat` is the artifact: verified within a day, or read now."""
        if stat.st_size != artifact.size_bytes:
            return False
        if not self._is_fresh(artifact.sha256, stat) and sha256_of(file) != artifact.sha256:
            return False
        self.record(artifact.sha256, stat)
        return True

    def record(self, sha256: str, stat: os.stat_result) -> None:
        """Record that the file with this `stat` is sound."""
        self._entries[sha256] = (_identity(stat), time.time())
        if self._folder is None or stat.st_size < MIN_RECORDED_BYTES:
            return
        with suppress(OSError):  # without the entry the file is only read once more
            write_atomically(self._folder / path_part(sha256), _identity(stat))

    def forget(self, sha256: str) -> None:
        """Remove an entry: the file is read before it is used again."""
        self._entries.pop(sha256, None)
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / path_part(sha256)).unlink()

    def _is_fresh(self, sha256: str, stat: os.stat_result) -> bool:
        """Whether the file with this `stat` was verified within a day."""
        identity, verified_at = self._entries.get(sha256) or self._read(sha256)
        return identity == _identity(stat) and 0 <= time.time() - verified_at < DAY_S

    def _read(self, sha256: str) -> tuple[str, float]:
        if self._folder is not None:
            with suppress(OSError):
                file = self._folder / path_part(sha256)
                return file.read_text(), file.stat().st_mtime
        return "", 0.0


def _identity(stat: os.stat_result) -> str:
    return f"{boot_id()} {stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"
