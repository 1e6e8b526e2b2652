"""What a store needs of the place that its files lie in: a folder, or a remote file system."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from jobs.task import Artifact

SHA256 = re.compile(r"[0-9a-f]{64}")
READ_ONLY = 0o444


class Soundness(StrEnum):
    """What was found where an artifact should be."""

    SOUND = "sound"
    DAMAGED = "damaged"  #: its content is not what its name says; it lies aside now
    MISSING = "missing"


class Note(StrEnum):
    """What is noted of an artifact beside it, in a file of no length."""

    USED = "used"  #: somebody has just published it, whether it was there before or not
    DOOMED = "doomed"  #: it is about to be removed


@dataclass(frozen=True)
class Stored:
    """A file in the store."""

    sha256: str
    size_bytes: int
    touched_at: datetime  #: when it was published last


class Shelf(Protocol):
    """Files by their sha256. All but `where` may raise StorageUnusable; `place` and `get` raise ArtifactLost."""

    @property
    def where(self) -> str:
        """A folder's path or a URL: for people."""

    def address(self, sha256: str) -> str:
        """Where a file lies, or would lie: for people."""

    def missing(self, artifacts: Iterable[Artifact]) -> set[Artifact]:
        """Those that are not there with the right size."""

    def publish(self, file: Path, artifact: Artifact, *, may_link: bool) -> None:
        """Put a file where its digest says, whole or not at all."""

    def check(self, artifact: Artifact) -> Soundness:
        """Read all of it; what is damaged is moved aside."""

    def local(self, artifact: Artifact) -> Path:
        """Where it can be read here, verified lately; raises ArtifactLost."""

    def place(self, artifact: Artifact, destination: Path) -> None:
        """Make it appear there, verified lately, read-only."""

    def get(self, artifact: Artifact, destination: Path) -> None:
        """Copy it there, verified; what an earlier try left of it is used."""

    def stored(self) -> Iterator[Stored]:
        """All there are, in no order."""

    def delete(self, sha256: str) -> None:
        """Let go of it, if it is there."""

    def links(self, artifact: Artifact) -> tuple[str, ...]:
        """URLs or a path that people can open: of several its content is one after the other."""

    def note(self, what: Note, sha256: str) -> None:
        """Note it, now."""

    def noted(self, what: Note, sha256: str) -> datetime | None:
        """When it was noted last, if it was."""

    def notes(self, what: Note) -> dict[str, datetime]:
        """When each file was noted last that was."""

    def unnote(self, what: Note, sha256: str) -> None:
        """Take it back."""

    def sweep(self, before: datetime, *, is_dry: bool) -> int:
        """Remove what was begun before then and never finished; returns bytes."""


def expect_sha256(text: str) -> str:
    """The text, if it is one; raises ValueError."""
    if not SHA256.fullmatch(text):
        raise ValueError(f"{text!r} is no sha256")
    return text
