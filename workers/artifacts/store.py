"""The artifact store, whose files lie in a folder or on a remote file system."""

import errno
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from jobs.errors import DISK_FULL_ERRNOS, StorageUnusable
from jobs.task import Artifact
from workers.artifacts.backend import NONEXISTENT, Backend, Marker, Soundness, Stored
from workers.artifacts.folder import FolderBackend
from workers.artifacts.locations import Location, folder_of
from workers.artifacts.parts import LIMITS, Limits
from workers.artifacts.streams import sha256_of
from workers.artifacts.verification_cache import VerificationCache

NOTHING = Artifact("nothing", "", NONEXISTENT, -1)  #: what no store has
READ_ONLY_ERRNOS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
POLL_S = 0.2  #: between two checks whether a tombstone is gone
TOMBSTONE_LIFETIME = timedelta(minutes=10)  #: an older one was left by a collector that was killed
REMOVAL_LIFETIME = TOMBSTONE_LIFETIME / 2  #: a collector that took longer removes nothing: others go on soon after


class ArtifactStore:
    """Files by their sha256, in a folder or at a URL; safe for any number of writers, readers and collectors.

    Everything raises StorageUnusable when the store can't be reached or is gone, and never takes that for a lost file.
    """

    def __init__(
        self, where: Location, cache: Path | None = None, limits: Limits = LIMITS, *, is_written: bool = True
    ) -> None:
        """`cache` is for downloads and the record of verified files; a store in a folder can do without.

        Raises StorageUnusable for a folder that can't be made or written; one that is not `is_written` only has to be
        readable. A remote store is connected on first use.
        """
        folder = folder_of(where)
        verified = VerificationCache(cache and cache / "verified")
        self._backend: Backend
        if folder is not None:
            self._backend = FolderBackend(folder, verified, is_written=is_written)
        else:
            from workers.artifacts.remote import RemoteBackend

            self._backend = RemoteBackend(str(where), cache, verified, limits)

    @property
    def where(self) -> str:
        """The folder or URL, for people."""
        return self._backend.where

    def expect(self) -> None:
        """Raise StorageUnusable where the store can't be reached or is gone."""
        self._backend.missing([NOTHING])

    def expect_writable(self) -> None:
        """Raise StorageUnusable where the store can't be reached, is gone, read-only or full."""
        self.expect()
        with self._faults():
            self._backend.try_to_write()

    def put(self, file: Path, kind: str, name: str | None = None, *, may_link: bool = True) -> Artifact:
        """Publish a finished file; a store without room for it raises StorageUnusable and keeps nothing of it.

        With `may_link` the file becomes read-only, and where possible a hard link of the stored one.
        """
        artifact = Artifact(name or file.name, kind, sha256_of(file), file.stat().st_size)
        with self._faults():
            self._backend.set_markers(Marker.USED, [artifact.sha256])
            self._wait_for_removal(artifact.sha256)
            self._backend.publish(file, artifact, may_link=may_link)
        return artifact

    def has(self, artifact: Artifact) -> bool:
        """Whether an artifact is stored with the right size."""
        return not self.missing([artifact])

    def has_all(self, artifacts: Iterable[Artifact]) -> bool:
        """Whether all artifacts are stored with the right sizes."""
        return not self.missing(artifacts)

    def missing(self, artifacts: Iterable[Artifact]) -> set[Artifact]:
        """Return the artifacts that are not stored with the right size; many are looked up at once."""
        return self._backend.missing(set(artifacts))

    def use(self, artifacts: Iterable[Artifact]) -> set[Artifact]:
        """Note that somebody counts on artifacts from now on; return those that are not stored, or are being removed.

        Those that are not returned stay for as long as `removal` regards a use as recent.
        """
        artifacts = set(artifacts)
        if not artifacts:
            return set()
        with self._faults():
            self._backend.set_markers(Marker.USED, {artifact.sha256 for artifact in artifacts})
            tombstones = self._tombstones()
        return self.missing(artifacts) | {artifact for artifact in artifacts if artifact.sha256 in tombstones}

    def clock(self) -> datetime:
        """Return the time by the store's clock, which gives files and their uses their times."""
        with self._faults():
            return self._backend.clock()

    def check(self, artifact: Artifact) -> Soundness:
        """Read all of an artifact where it lies. A damaged one is moved aside, so that it is missing from then on."""
        return self._backend.check(artifact)

    def verify(self, artifact: Artifact) -> bool:
        """Whether `check` finds an artifact sound."""
        return self.check(artifact) is Soundness.SOUND

    def place(self, artifact: Artifact, destination: Path) -> None:
        """Make an artifact appear at `destination`, read-only, as a link where possible; verified within a day, or now.

        Raises ArtifactLost when the store does not have it, or has it damaged: it is moved aside then.
        """
        self._backend.place(artifact, destination)

    def local(self, artifact: Artifact) -> Path:
        """Return a verified file on this machine with an artifact's content; raises ArtifactLost.

        Of a remote store it is in the cache, and may be evicted at any time: open it, or place it instead.
        """
        return self._backend.local(artifact)

    def open(self, artifact: Artifact) -> BinaryIO:
        """Open an artifact to read its verified content; raises ArtifactLost."""
        return self._backend.local(artifact).open("rb")

    def get(self, artifact: Artifact, destination: Path) -> None:
        """Copy an artifact to a new file, past the cache; a later call resumes an interrupted one.

        Raises ArtifactLost.
        """
        self._backend.get(artifact, destination)

    def path(self, sha256: str) -> Path:
        """Return the path of a file with this digest in a folder's store.

        Raises ValueError for anything but a sha256, and for a remote store.
        """
        if isinstance(self._backend, FolderBackend):
            return self._backend.path(sha256)
        raise ValueError(f"{self.where} is no folder of this machine")

    def address(self, sha256: str) -> str:
        """Return the path or URL where a file lies, or would lie, for people."""
        return self._backend.address(sha256)

    def links(self, artifact: Artifact) -> tuple[str, ...]:
        """Return a path or URLs that people can open, for some days; the contents of several follow one another.

        Raises ArtifactLost.
        """
        return self._backend.links(artifact)

    def stored(self) -> Iterator[Stored]:
        """Yield every file in the store, in no order."""
        used = self._backend.marker_times(Marker.USED)
        for stored in self._backend.stored():
            yield replace(stored, touched_at=max(stored.touched_at, used.get(stored.sha256, stored.touched_at)))

    @contextmanager
    def removal(self, digests: Collection[str], before: datetime) -> Iterator["Removal"]:
        """A context in which files may be removed: those that nobody has published or counted on since `before`.

        Whoever publishes or uses a file sets its marker first and then looks for tombstones; a removal does the same
        the other way round, so that one of the two sees the other. For one collector at a time.
        """
        self._backend.set_markers(Marker.TOMBSTONE, digests)
        expires_s = time.monotonic() + REMOVAL_LIFETIME.total_seconds()
        try:
            used = {sha256: self._backend.marker_time(Marker.USED, sha256) for sha256 in digests}
            unused = [sha256 for sha256, used_at in used.items() if used_at is None or used_at < before]
            yield Removal(self._backend, frozenset(unused), expires_s)
        finally:
            for sha256 in digests:
                self._backend.clear_marker(Marker.TOMBSTONE, sha256)

    def sweep(self, before: datetime, *, is_dry: bool = False) -> int:
        """Remove unfinished uploads that began before a time; returns their bytes."""
        return self._backend.sweep(before, is_dry=is_dry)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """A context that turns errors of the store's file system into StorageUnusable, with the remedy."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in DISK_FULL_ERRNOS:
                reason = "no space is left on it; free some, or set HALOCTL_ARTIFACTS to a larger store"
            elif error.errno in READ_ONLY_ERRNOS:
                reason = f"it can't be written ({reason}); make it writable for this user"
            raise StorageUnusable(f"artifact store {self.where}", reason) from error

    def _wait_for_removal(self, sha256: str) -> None:
        while (set_at := self._backend.marker_time(Marker.TOMBSTONE, sha256)) and self._is_alive(set_at):
            time.sleep(POLL_S)

    def _tombstones(self) -> set[str]:
        """Return the digests of the files that a collector is removing."""
        tombstones = self._backend.marker_times(Marker.TOMBSTONE)
        return {sha256 for sha256, set_at in tombstones.items() if self._is_alive(set_at)}

    def _is_alive(self, tombstone: datetime) -> bool:
        """Whether the collector that set a tombstone may still go by it; both times are of the store's clock."""
        return self._backend.clock() - tombstone < TOMBSTONE_LIFETIME


@dataclass(frozen=True)
class Removal:
    """The files that may be removed now."""

    backend: Backend
    unused: Collection[str]  #: their digests
    expires_s: float  #: by the monotonic clock: then tombstones are too old for others to go by them

    def delete(self, sha256: str) -> bool:
        """Remove a file, if it exists; False where it has to stay, or took too long to be looked up."""
        if sha256 not in self.unused or time.monotonic() >= self.expires_s:
            return False
        self.backend.delete(sha256)
        return True
