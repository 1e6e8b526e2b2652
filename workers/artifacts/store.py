"""The front of the store: the same for a folder and for every remote file system."""

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from jobs.task import Artifact
from workers.artifacts.folder import Folder
from workers.artifacts.locations import Location, folder_of
from workers.artifacts.parts import LIMITS, Limits
from workers.artifacts.shelf import Note, Shelf, Soundness, Stored
from workers.artifacts.stamps import Stamps
from workers.artifacts.streams import sha256_of

NOTHING = Artifact("nothing", "", "0" * 64, -1)  #: what no store has
LOOK_S = 0.2  #: nothing tells that a removal is over
REMOVAL = timedelta(minutes=10)  #: what was to be removed longer ago is not any more: whoever wanted to was killed


class ArtifactStore:
    """Files by their sha256, in a folder or at a URL; safe for any number of writers, readers and collectors.

    Everything raises StorageUnusable when the store can't be reached or is gone, and never takes that for a lost file.
    """

    def __init__(self, where: Location, cache: Path | None = None, limits: Limits = LIMITS) -> None:
        """`cache` is for what this node fetched and verified; a folder does without.

        Raises StorageUnusable for a folder that can't be made or written; what is remote is reached when it is used.
        """
        folder = folder_of(where)
        stamps = Stamps(cache and cache / "verified")
        self._shelf: Shelf
        if folder is not None:
            self._shelf = Folder(folder, stamps)
        else:
            from workers.artifacts.remote import Remote

            self._shelf = Remote(str(where), cache, stamps, limits)

    @property
    def where(self) -> str:
        """The folder or URL that it is, for people."""
        return self._shelf.where

    def expect(self) -> None:
        """Raise StorageUnusable where it can't be reached or is gone."""
        self._shelf.missing([NOTHING])

    def put(self, file: Path, kind: str, name: str | None = None, *, may_link: bool = True) -> Artifact:
        """Publish a finished file; raises OSError and leaves nothing when the disk is full.

        It becomes read-only, and one with the stored one where that can be; without `may_link` it stays as it is.
        """
        artifact = Artifact(name or file.name, kind, sha256_of(file), file.stat().st_size)
        self._shelf.note(Note.USED, artifact.sha256)
        self._await_removal(artifact.sha256)
        self._shelf.publish(file, artifact, may_link=may_link)
        return artifact

    def has(self, artifact: Artifact) -> bool:
        """Whether it is there with the right size."""
        return not self.missing([artifact])

    def has_all(self, artifacts: Iterable[Artifact]) -> bool:
        """Whether all are there with the right sizes."""
        return not self.missing(artifacts)

    def missing(self, artifacts: Iterable[Artifact]) -> set[Artifact]:
        """Those that are not there with the right size; many are asked for at once."""
        return self._shelf.missing(set(artifacts))

    def check(self, artifact: Artifact) -> Soundness:
        """Read all of it, where it lies. What is damaged is moved aside, so that it is missing from then on."""
        return self._shelf.check(artifact)

    def verify(self, artifact: Artifact) -> bool:
        """Whether it is there and its content is what its name says, as `check` finds."""
        return self.check(artifact) is Soundness.SOUND

    def place(self, artifact: Artifact, destination: Path) -> None:
        """Make it appear at `destination`, read-only, a link where that can be; verified within a day, or now.

        Raises ArtifactLost when the store does not have it, or has it damaged: it is moved aside then.
        """
        self._shelf.place(artifact, destination)

    def local(self, artifact: Artifact) -> Path:
        """A file on this machine with its content, verified; of a remote store the cache's. Raises ArtifactLost.

        What is cached may be removed at any time: open it, or place it instead.
        """
        return self._shelf.local(artifact)

    def open(self, artifact: Artifact) -> BinaryIO:
        """Its content, verified, to read; raises ArtifactLost."""
        return self._shelf.local(artifact).open("rb")

    def get(self, artifact: Artifact, destination: Path) -> None:
        """Copy it to a file that is not there yet, past the cache; a later call goes on where an earlier one ended.

        Raises ArtifactLost.
        """
        self._shelf.get(artifact, destination)

    def path(self, sha256: str) -> Path:
        """Where a folder has a file with this digest, or would; ValueError for no digest, and for a store elsewhere."""
        if isinstance(self._shelf, Folder):
            return self._shelf.path(sha256)
        raise ValueError(f"{self.where} is no folder of this machine")

    def address(self, sha256: str) -> str:
        """Where it lies, or would lie: a path or a URL, for people."""
        return self._shelf.address(sha256)

    def links(self, artifact: Artifact) -> tuple[str, ...]:
        """What people can open: a path, or URLs that are good for a while; of several, content one after the other.

        Raises ArtifactLost.
        """
        return self._shelf.links(artifact)

    def stored(self) -> Iterator[Stored]:
        """Everything in it, in no order."""
        used = self._shelf.notes(Note.USED)
        for one in self._shelf.stored():
            yield replace(one, touched_at=max(one.touched_at, used.get(one.sha256, one.touched_at)))

    @contextmanager
    def removal(self, doomed: Collection[str], before: datetime) -> Iterator[list[str]]:
        """A context in which nobody publishes any of these files; gives those that nobody has published since `before`.

        Whoever publishes one notes so first and looks for a removal then; here it is the other way round.
        """
        for sha256 in doomed:
            self._shelf.note(Note.DOOMED, sha256)
        try:
            yield [one for one in doomed if (used := self._shelf.noted(Note.USED, one)) is None or used < before]
        finally:
            for sha256 in doomed:
                self._shelf.unnote(Note.DOOMED, sha256)

    def delete(self, sha256: str) -> None:
        """Let go of a file, if it is there; within `removal` nobody counts on it."""
        self._shelf.delete(sha256)

    def sweep(self, before: datetime, *, is_dry: bool = False) -> int:
        """Remove what was begun before then and never finished; returns how many bytes."""
        return self._shelf.sweep(before, is_dry=is_dry)

    def _await_removal(self, sha256: str) -> None:
        while (since := self._shelf.noted(Note.DOOMED, sha256)) and datetime.now(UTC) - since < REMOVAL:
            time.sleep(LOOK_S)
