"""Which files were found sound lately, so that a large one is not read whole each time that it is used."""

import os
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from jobs.task import Artifact
from workers.artifacts.streams import sha256_of

DAY_S = 24 * 3600.0
WORTH_BYTES = 1 << 20  #: a smaller file is read in less time than it takes to write down that it was


class Stamps:
    """Remembers the very file that was verified: device, inode, size and time of its last change.

    Not its ctime: each hard link that comes and goes changes that.
    """

    def __init__(self, folder: Path | None) -> None:
        """They are kept in `folder`; without one for as long as this object lives."""
        self._folder = folder
        self._known: dict[str, tuple[str, float]] = {}

    def is_sound(self, file: Path, artifact: Artifact, found: os.stat_result) -> bool:
        """Whether a file, which was `found` so, is the artifact: verified within a day, or now."""
        if found.st_size != artifact.size_bytes:
            return False
        if not self._is_fresh(artifact.sha256, found) and sha256_of(file) != artifact.sha256:
            return False
        self.note(artifact.sha256, found)
        return True

    def note(self, sha256: str, found: os.stat_result) -> None:
        """This very file is sound."""
        self._known[sha256] = (_identity(found), time.time())
        if self._folder is None or found.st_size < WORTH_BYTES:
            return
        with suppress(OSError):  # without it the file is only read once more
            self._folder.mkdir(parents=True, exist_ok=True)
            part = self._folder / f".{uuid4().hex}.part"
            part.write_text(_identity(found))
            part.replace(self._folder / sha256)

    def forget(self, sha256: str) -> None:
        """It has to be read before it is used again."""
        self._known.pop(sha256, None)
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / sha256).unlink()

    def _is_fresh(self, sha256: str, found: os.stat_result) -> bool:
        """Whether this very file was verified within a day."""
        text, at = self._known.get(sha256) or self._read(sha256)
        return text == _identity(found) and 0 <= time.time() - at < DAY_S

    def _read(self, sha256: str) -> tuple[str, float]:
        if self._folder is not None:
            with suppress(OSError):
                file = self._folder / sha256
                return file.read_text(), file.stat().st_mtime
        return "", 0.0


def _identity(found: os.stat_result) -> str:
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
