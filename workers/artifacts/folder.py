"""A store in a folder: `sha256/<first two digits>/<sha256>`; files are placed as hard links where possible."""

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from jobs.errors import DISK_FULL_ERRNOS, ArtifactLost, StorageUnusable
from jobs.hashing import SHA256
from jobs.task import Artifact
from workers.artifacts import downloads
from workers.artifacts.backend import READ_ONLY, Marker, Soundness, Stored, expect_sha256
from workers.artifacts.streams import BLOCK_BYTES, read_blocks, try_hard_link
from workers.artifacts.verification_cache import VerificationCache
from workers.durability import DISK, Disk, replace_durably

BLOCK_OF_FILE_SYSTEM = 4096  #: bytes
NOT_WRITABLE_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
FILES, PARTS, ASIDE, CLOCK = "sha256", "incoming", "damaged", ".clock"


class FolderBackend:
    """A `Backend` in a folder, safe for any number of writers on any number of machines."""

    def __init__(self, root: Path, verified: VerificationCache, *, is_written: bool = True, disk: Disk = DISK) -> None:
        """Create the folder if necessary; raises StorageUnusable where it can't be made or written.

        One that is not `is_written` only has to be readable.
        """
        self.root = root.absolute()
        self._verified = verified
        self._disk = disk
        try:
            self._make_folder(self.root / FILES)
        except OSError as error:
            raise self._unusable(f"{error.strerror}; choose another data folder") from error
        if not os.access(self.root / FILES, (os.W_OK if is_written else os.R_OK) | os.X_OK):
            verb = "written" if is_written else "read"
            raise self._unusable(f"it can't be {verb}; choose another data folder")

    @property
    def where(self) -> str:
        """The folder's path."""
        return str(self.root)

    def path(self, sha256: str) -> Path:
        """Return the path of a file with this digest, whether it exists or not."""
        return self.root / FILES / expect_sha256(sha256)[:2] / sha256

    def address(self, sha256: str) -> str:
        """Return the file's path."""
        return str(self.path(sha256))

    def missing(self, artifacts: Iterable[Artifact]) -> set[Artifact]:
        """Return the artifacts that have no file of the right size."""
        missing = {artifact for artifact in artifacts if not self._has(artifact)}
        if missing:
            self._expect_root()
        return missing

    def try_to_write(self) -> None:
        """Write a block."""
        part = self._part()
        try:
            with part.open("xb") as file:
                file.write(bytes(BLOCK_OF_FILE_SYSTEM))
                file.flush()
                os.fsync(file.fileno())  # where the file system says only then that it is full
        finally:
            part.unlink(missing_ok=True)

    def publish(self, file: Path, artifact: Artifact, *, may_link: bool) -> None:
        """Link the file, replacing what is there; where no link can be made copy it, unless what is there is sound.

        When this returns, a power cut does not take the file away again.
        """
        destination = self.path(artifact.sha256)
        self._expect_root()
        self._make_folder(destination.parent)
        part = self._part()
        try:
            is_linked = may_link and try_hard_link(file, part)
            if not is_linked and self._has(artifact) and self.check(artifact) is Soundness.SOUND:
                self._disk.sync_file(destination)  # whoever has just published it may not be done with that
                self._disk.sync_folder(destination.parent)
                return
            if not is_linked:
                self._copy(file, artifact, part)
            part.chmod(READ_ONLY)
            replace_durably(part, destination, self._disk)
            if is_linked:
                self._verified.record(artifact.sha256, destination.stat())
        finally:
            part.unlink(missing_ok=True)

    def check(self, artifact: Artifact) -> Soundness:
        """Read all of the file."""
        self._verified.forget(artifact.sha256)
        try:
            self.local(artifact)
        except ArtifactLost as lost:
            return Soundness.MISSING if lost.how == Soundness.MISSING else Soundness.DAMAGED
        return Soundness.SOUND

    def local(self, artifact: Artifact) -> Path:
        """Return the file in the store."""
        source = self.path(artifact.sha256)
        try:
            stat = source.stat()
        except FileNotFoundError:
            self._expect_root()
            raise self._lost(artifact, Soundness.MISSING) from None
        if not self._verified.is_sound(source, artifact, stat):
            raise self._lost(artifact, f"damaged: what was there lies in {self._set_aside(source, stat)}")
        return source

    def place(self, artifact: Artifact, destination: Path) -> None:
        """Make a hard link, on another file system a symbolic one."""
        source = self.local(artifact)
        destination.parent.mkdir(parents=True, exist_ok=True)
        if not try_hard_link(source, destination):
            destination.symlink_to(source)

    def get(self, artifact: Artifact, destination: Path) -> None:
        """Copy the file."""
        source = self.path(artifact.sha256)
        if self.missing([artifact]):
            raise self._lost(artifact, Soundness.MISSING)
        stat = source.stat()
        if not downloads.download(artifact, destination, lambda start: read_blocks(source, start)):
            raise self._lost(artifact, f"damaged: what was there lies in {self._set_aside(source, stat)}")

    def stored(self) -> Iterator[Stored]:
        """Walk the folder."""
        self._expect_root()
        for file in (self.root / FILES).glob("*/*"):
            with suppress(FileNotFoundError):
                stat = file.stat()
                if SHA256.fullmatch(file.name):
                    yield Stored(file.name, stat.st_size, _utc(stat.st_mtime))

    def delete(self, sha256: str) -> None:
        """Remove the file; where it was placed by a hard link it stays."""
        self.path(sha256).unlink(missing_ok=True)

    def links(self, artifact: Artifact) -> tuple[str, ...]:
        """Return the file's path."""
        if self.missing([artifact]):
            raise self._lost(artifact, Soundness.MISSING)
        return (str(self.path(artifact.sha256)),)

    def clock(self) -> datetime:
        """Touch a file, and return its time: a file server has a clock of its own."""
        self._expect_root()
        file = self.root / CLOCK
        file.touch()
        return _mtime_of(file)

    def set_markers(self, marker: Marker, digests: Iterable[str]) -> None:
        """Touch empty files, whose times are the markers'."""
        self._expect_root()
        (self.root / marker).mkdir(exist_ok=True)
        for sha256 in digests:
            self._marker_path(marker, sha256).touch()

    def marker_time(self, marker: Marker, sha256: str) -> datetime | None:
        """Return the time of the marker's file."""
        with suppress(FileNotFoundError):
            return _mtime_of(self._marker_path(marker, sha256))
        return None

    def marker_times(self, marker: Marker) -> dict[str, datetime]:
        """Return the times of all files of the marker."""
        return {sha256: _utc(mtime) for sha256, mtime in _mtimes_in(self.root / marker)}

    def clear_marker(self, marker: Marker, sha256: str) -> None:
        """Remove the marker's file."""
        self._marker_path(marker, sha256).unlink(missing_ok=True)

    def sweep(self, before: datetime, *, is_dry: bool) -> int:
        """Remove unfinished copies into the store, and old markers."""
        freed_bytes = 0
        for file in (*self.root.glob(".*.part"), *(self.root / PARTS).glob("*"), *(self.root / Marker.USED).glob("*")):
            with suppress(FileNotFoundError):
                stat = file.stat()
                if _utc(stat.st_mtime) < before:
                    freed_bytes += stat.st_size
                    if not is_dry:
                        file.unlink()
        return freed_bytes

    def _has(self, artifact: Artifact) -> bool:
        try:
            return self.path(artifact.sha256).stat().st_size == artifact.size_bytes
        except FileNotFoundError:
            return False

    def _copy(self, file: Path, artifact: Artifact, destination: Path) -> None:
        """Copy by way of a file that the next publisher of the same content resumes if this one is interrupted."""
        partial = self.root / PARTS / artifact.sha256
        partial.parent.mkdir(exist_ok=True)
        with _try_lock(partial) as is_locked:
            if not is_locked:
                _append(file, 0, destination)
                return
            _append(file, _common_bytes(file, partial), partial)
            partial.rename(destination)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder with its parents, for good."""
        if folder.is_dir():
            return
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
        self._disk.sync_folder(folder.parent)

    def _part(self) -> Path:
        return self.root / f".{uuid4().hex}.part"

    def _marker_path(self, marker: Marker, sha256: str) -> Path:
        return self.root / marker / expect_sha256(sha256)

    def _set_aside(self, source: Path, stat: os.stat_result) -> Path:
        """Move the damaged file, which had this `stat`, aside; one that has replaced it meanwhile goes back.

        Returns where it lies: where it was, if this user may only read the store.
        """
        aside = self.root / ASIDE / f"{source.name}-{uuid4().hex[:8]}"
        self._verified.forget(source.name)
        with suppress(FileNotFoundError):
            try:
                aside.parent.mkdir(exist_ok=True)
                source.rename(aside)
            except OSError as error:
                if error.errno in NOT_WRITABLE_ERRNOS:
                    return source
                raise
            if not os.path.samestat(aside.stat(), stat):
                with suppress(FileExistsError):
                    source.hardlink_to(aside)
        return aside

    def _lost(self, artifact: Artifact, how: str) -> ArtifactLost:
        return ArtifactLost(artifact.name, artifact.sha256, self.where, how)

    def _expect_root(self) -> None:
        """Raise StorageUnusable where the folder is not mounted: being empty then does not mean that files are lost."""
        if not (self.root / FILES).is_dir():
            raise self._unusable("it is gone: mount it, or bring it back")

    def _unusable(self, reason: str) -> StorageUnusable:
        return StorageUnusable(f"artifact store {self.root}", reason)


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _mtime_of(file: Path) -> datetime:
    """Return a file's time; opened, because NFS asks its server then and may remember an earlier answer otherwise."""
    with file.open("rb") as opened:
        return _utc(os.fstat(opened.fileno()).st_mtime)


def _mtimes_in(folder: Path) -> Iterator[tuple[str, float]]:
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                yield entry.name, entry.stat().st_mtime


@contextmanager
def _try_lock(partial: Path) -> Iterator[bool]:
    """A context that has a partial copy locked; False where somebody else writes it, or locks do not work.

    By fcntl, not filelock: the copy itself is locked, and is moved into the store while it is; on a file system without
    locks this must not fall back to a lock of another kind.
    """
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = os.path.samestat(os.fstat(descriptor), partial.stat())
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


def _common_bytes(file: Path, partial: Path) -> int:
    """Return for how many bytes a partial copy is the beginning of a file."""
    common_bytes = 0
    for copied, content in zip(read_blocks(partial), read_blocks(file), strict=False):
        if copied != content[: len(copied)]:
            break
        common_bytes += len(copied)
    return common_bytes


def _append(file: Path, start: int, destination: Path) -> None:
    """Copy a file from an offset on; on a full disk the copy is removed."""
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
