"""A store in a folder: `sha256/<first two digits>/<sha256>`; placed by hard links where the file system allows it."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from jobs.errors import DISK_FULL_ERRNOS, ArtifactLost, StorageUnusable
from jobs.task import Artifact
from workers.artifacts import downloads
from workers.artifacts.shelf import READ_ONLY, SHA256, Note, Soundness, Stored, expect_sha256
from workers.artifacts.stamps import Stamps
from workers.artifacts.streams import BLOCK_BYTES, blocks_of, linked

FILES, PARTS, ASIDE = "sha256", "incoming", "damaged"


class Folder:
    """Implements `shelf.Shelf`; safe for any number of writers on any number of machines."""

    def __init__(self, root: Path, stamps: Stamps) -> None:
        """Raises StorageUnusable where it can't be made or written."""
        self.root = root.absolute()
        self._stamps = stamps
        try:
            (self.root / FILES).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(f"{error.strerror}; choose another data folder") from error
        if not os.access(self.root / FILES, os.W_OK | os.X_OK):
            raise self._unusable("it can't be written; choose another data folder")

    @property
    def where(self) -> str:
        """Its path."""
        return str(self.root)

    def path(self, sha256: str) -> Path:
        """Where a file with this digest lies, whether it is there or not."""
        return self.root / FILES / expect_sha256(sha256)[:2] / sha256

    def address(self, sha256: str) -> str:
        """Its path."""
        return str(self.path(sha256))

    def missing(self, artifacts: Iterable[Artifact]) -> set[Artifact]:
        """Those without a file of the right size."""
        found = {artifact for artifact in artifacts if not self._has(artifact)}
        if found:
            self._expect_root()
        return found

    def publish(self, file: Path, artifact: Artifact, *, may_link: bool) -> None:
        """Link it, in the place of what may be there; where that can't be copy it, unless what is there is sound."""
        destination = self.path(artifact.sha256)
        self._expect_root()
        destination.parent.mkdir(exist_ok=True)
        part = self._part()
        try:
            if may_link and linked(file, part):
                self._stamps.note(artifact.sha256, part.stat())
            else:
                if self._has(artifact) and self.check(artifact) is Soundness.SOUND:
                    return
                self._copy(file, artifact, part)
            part.chmod(READ_ONLY)
            part.replace(destination)
        finally:
            part.unlink(missing_ok=True)

    def check(self, artifact: Artifact) -> Soundness:
        """Read all of it."""
        self._stamps.forget(artifact.sha256)
        try:
            self.local(artifact)
        except ArtifactLost as lost:
            return Soundness.MISSING if lost.how == Soundness.MISSING else Soundness.DAMAGED
        return Soundness.SOUND

    def local(self, artifact: Artifact) -> Path:
        """The file in the store."""
        source = self.path(artifact.sha256)
        try:
            found = source.stat()
        except FileNotFoundError:
            self._expect_root()
            raise self._lost(artifact, Soundness.MISSING) from None
        if not self._stamps.is_sound(source, artifact, found):
            raise self._lost(artifact, f"damaged: what was there lies in {self._set_aside(source, found)}")
        return source

    def place(self, artifact: Artifact, destination: Path) -> None:
        """A hard link, on another file system a symbolic one."""
        source = self.local(artifact)
        destination.parent.mkdir(parents=True, exist_ok=True)
        if not linked(source, destination):
            destination.symlink_to(source)

    def get(self, artifact: Artifact, destination: Path) -> None:
        """A copy of its own."""
        source = self.path(artifact.sha256)
        if self.missing([artifact]):
            raise self._lost(artifact, Soundness.MISSING)
        found = source.stat()
        if not downloads.fetched(artifact, destination, lambda start: blocks_of(source, start)):
            raise self._lost(artifact, f"damaged: what was there lies in {self._set_aside(source, found)}")

    def stored(self) -> Iterator[Stored]:
        """Found by walking the folder."""
        self._expect_root()
        for file in (self.root / FILES).glob("*/*"):
            with suppress(FileNotFoundError):
                found = file.stat()
                if SHA256.fullmatch(file.name):
                    yield Stored(file.name, found.st_size, _moment(found.st_mtime))

    def delete(self, sha256: str) -> None:
        """What is placed somewhere lives on there."""
        self.path(sha256).unlink(missing_ok=True)

    def links(self, artifact: Artifact) -> tuple[str, ...]:
        """Its path."""
        if self.missing([artifact]):
            raise self._lost(artifact, Soundness.MISSING)
        return (str(self.path(artifact.sha256)),)

    def note(self, what: Note, sha256: str) -> None:
        """An empty file, whose time is the note's."""
        self._expect_root()
        file = self._note(what, sha256)
        file.parent.mkdir(exist_ok=True)
        file.touch()

    def noted(self, what: Note, sha256: str) -> datetime | None:
        """The time of that file."""
        with suppress(FileNotFoundError):
            return _moment(self._note(what, sha256).stat().st_mtime)
        return None

    def notes(self, what: Note) -> dict[str, datetime]:
        """The times of all such files."""
        return {sha256: _moment(at) for sha256, at in _times_in(self.root / what)}

    def unnote(self, what: Note, sha256: str) -> None:
        """Remove that file."""
        self._note(what, sha256).unlink(missing_ok=True)

    def sweep(self, before: datetime, *, is_dry: bool) -> int:
        """Copies into the store that ended in the middle."""
        freed_bytes = 0
        for file in (*self.root.glob(".*.part"), *(self.root / PARTS).glob("*"), *(self.root / Note.USED).glob("*")):
            with suppress(FileNotFoundError):
                found = file.stat()
                if _moment(found.st_mtime) < before:
                    freed_bytes += found.st_size
                    if not is_dry:
                        file.unlink()
        return freed_bytes

    def _has(self, artifact: Artifact) -> bool:
        try:
            return self.path(artifact.sha256).stat().st_size == artifact.size_bytes
        except FileNotFoundError:
            return False

    def _copy(self, file: Path, artifact: Artifact, destination: Path) -> None:
        """By way of a file that the next one who publishes the same content goes on with, should this end."""
        kept = self.root / PARTS / artifact.sha256
        kept.parent.mkdir(exist_ok=True)
        with _alone(kept) as mine:
            if mine is None:
                _append(file, 0, destination)
                return
            _append(file, _agreed_bytes(file, kept), kept)
            kept.rename(destination)

    def _part(self) -> Path:
        return self.root / f".{uuid4().hex}.part"

    def _note(self, what: Note, sha256: str) -> Path:
        return self.root / what / expect_sha256(sha256)

    def _set_aside(self, source: Path, found: os.stat_result) -> Path:
        """Move the damaged file out of the way; one that was put in its place meanwhile goes back."""
        aside = self.root / ASIDE / f"{source.name}-{uuid4().hex[:8]}"
        self._stamps.forget(source.name)
        with suppress(FileNotFoundError):
            aside.parent.mkdir(exist_ok=True)
            source.rename(aside)
            if not os.path.samestat(aside.stat(), found):
                with suppress(FileExistsError):
                    source.hardlink_to(aside)
        return aside

    def _lost(self, artifact: Artifact, how: str) -> ArtifactLost:
        return ArtifactLost(artifact.name, artifact.sha256, self.where, how)

    def _expect_root(self) -> None:
        """A folder that is not mounted is empty: that is no reason to take everything for lost."""
        if not (self.root / FILES).is_dir():
            raise self._unusable("it is gone: mount it, or bring it back")

    def _unusable(self, reason: str) -> StorageUnusable:
        return StorageUnusable(f"artifact store {self.root}", reason)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _times_in(folder: Path) -> Iterator[tuple[str, float]]:
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                yield entry.name, entry.stat().st_mtime


@contextmanager
def _alone(kept: Path) -> Iterator[int | None]:
    """The file open and locked; None where somebody else writes it, or locks do not work."""
    file = os.open(kept, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = os.path.samestat(os.fstat(file), kept.stat())
        except OSError:
            is_mine = False
        yield file if is_mine else None
    finally:
        os.close(file)


def _agreed_bytes(file: Path, kept: Path) -> int:
    """How far what was copied before is what is to be copied."""
    agreed = 0
    for have, want in zip(blocks_of(kept), blocks_of(file), strict=False):
        if have != want[: len(have)]:
            break
        agreed += len(have)
    return agreed


def _append(file: Path, start: int, destination: Path) -> None:
    """Copy from an offset on; on a full disk nothing is left."""
    try:
        with destination.open("r+b" if destination.exists() else "wb") as copy, file.open("rb") as content:
            copy.truncate(start)
            copy.seek(start)
            while count := os.sendfile(copy.fileno(), content.fileno(), start, BLOCK_BYTES):
                start += count
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            destination.unlink(missing_ok=True)
        raise
