"""The interface between an artifact store and the place where its files lie: a folder, or a remote file system."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from jobs.errors import UnsafePath
from jobs.hashing import SHA256
from jobs.task import Artifact

READ_ONLY = 0o444
NONEXISTENT = "0" * 64  #: the digest of what no store has


class Soundness(StrEnum):
    """The state in which an artifact was found in a store."""

    SOUND = "sound"
    DAMAGED = "damaged"  #: its content does not match its digest; it has been moved aside
    MISSING = "missing"


class Marker(StrEnum):
    """A marker of an artifact: an empty file in a folder of the store that has the marker's value as its name."""

    USED = "used"  #: somebody has just published it, whether it was there before or not, or counts on it from now on
    TOMBSTONE = "doomed"  #: it is about to be removed


@dataclass(frozen=True)
class Stored:
    """A file in the store."""

    sha256: str
    size_bytes: int
    touched_at: datetime  #: when it was published last


class Backend(Protocol):
    """Files by their sha256. All but `where` may raise StorageUnusable; `place` and `get` raise ArtifactLost."""

    @property
    def where(self) -> str:
        """The folder's path or the URL, for people."""

    def address(self, sha256: str) -> str:
        """Return where a file lies, or would lie, for people."""

    def missing(self, artifacts: Iterable[Artifact]) -> set[Artifact]:
        """Return the artifacts that are not stored with the right size."""

    def try_to_write(self) -> None:
        """Write something and remove it again; raises OSError as well."""

    def publish(self, file: Path, artifact: Artifact, *, may_link: bool) -> None:
        """Store a file under its digest, whole or not at all."""

    def check(self, artifact: Artifact) -> Soundness:
        """Read all of an artifact; a damaged one is moved aside."""

    def local(self, artifact: Artifact) -> Path:
        """Return a file on this machine with an artifact's content, verified recently; raises ArtifactLost."""

    def place(self, artifact: Artifact, destination: Path) -> None:
        """Make an artifact appear at `destination`, verified recently and read-only."""

    def get(self, artifact: Artifact, destination: Path) -> None:
        """Copy an artifact to `destination`, verified; what an interrupted copy left there is resumed."""

    def stored(self) -> Iterator[Stored]:
        """Yield all files, in no order."""

    def delete(self, sha256: str) -> None:
        """Remove a file, if it exists."""

    def links(self, artifact: Artifact) -> tuple[str, ...]:
        """Return a path, or URLs, that people can open; the contents of several follow one another."""

    def clock(self) -> datetime:
        """Return the time by the clock that the times of files and markers are of."""

    def set_markers(self, marker: Marker, digests: Iterable[str]) -> None:
        """Set a marker of each file, with the current time."""

    def marker_time(self, marker: Marker, sha256: str) -> datetime | None:
        """Return when a marker was last set, or None."""

    def marker_times(self, marker: Marker) -> dict[str, datetime]:
        """Return when a marker was last set, for every digest that has it."""

    def clear_marker(self, marker: Marker, sha256: str) -> None:
        """Remove a marker, if it is set."""

    def sweep(self, before: datetime, *, is_dry: bool) -> int:
        """Remove unfinished uploads that began before a time; returns their bytes."""


def expect_sha256(text: str) -> str:
    """Return the text if it is a sha256; raises UnsafePath."""
    if not SHA256.fullmatch(text):
        raise UnsafePath(text, "is no sha256")
    return text
