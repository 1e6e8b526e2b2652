"""Garbage collection of the artifact store: a pure decision, carried out safely beside those who publish."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from db.reads.artifact_refs import ReferencedFiles
from workers.artifacts import ArtifactStore, Stored

MIN_AGE = timedelta(hours=1)  #: since a file was published or used, before it may be removed
ABANDONED_AGE = timedelta(days=1)  #: an upload that was begun longer ago will not be finished
BATCH_SIZE = 50  #: files in one removal


@dataclass(frozen=True)
class CollectionResult:
    """What was removed, or would be in a dry run."""

    removed: tuple[Stored, ...]
    abandoned_bytes: int

    @property
    def freed_bytes(self) -> int:
        """The size of all of it."""
        return sum(file.size_bytes for file in self.removed) + self.abandoned_bytes


def unreferenced(stored: Iterable[Stored], kept: ReferencedFiles, now: datetime) -> list[Stored]:
    """Return the files that nothing refers to and that were not published lately.

    Nothing refers to what a running attempt publishes before it ends: while one runs, files younger than it are kept.
    """
    before = min(filter(None, (now, kept.running_since))) - MIN_AGE
    return [file for file in stored if file.sha256 not in kept.digests and file.touched_at < before]


def collect(
    store: ArtifactStore, read_kept: Callable[[], ReferencedFiles], now: datetime, *, is_dry: bool = False
) -> CollectionResult:
    """Remove the unreferenced files, after reading the references again while they have tombstones.

    `now` is the time by the store's clock: this machine's may differ from the one that gave files their times.
    """
    kept = read_kept()
    files = sorted(unreferenced(store.stored(), kept, now), key=lambda file: file.sha256)
    if not is_dry:
        batches = [files[start : start + BATCH_SIZE] for start in range(0, len(files), BATCH_SIZE)]
        files = [file for batch in batches for file in _remove(store, batch, read_kept, now)]
    abandoned_before = min(filter(None, (now, kept.running_since))) - ABANDONED_AGE
    return CollectionResult(tuple(files), store.sweep(abandoned_before, is_dry=is_dry))


def _remove(
    store: ArtifactStore, files: Sequence[Stored], read_kept: Callable[[], ReferencedFiles], now: datetime
) -> Iterator[Stored]:
    with store.removal([file.sha256 for file in files], now - MIN_AGE) as removal:
        for file in unreferenced(files, read_kept(), now):
            if removal.delete(file.sha256):
                yield file
