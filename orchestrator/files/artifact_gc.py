"""Which files leave the artifact store. The decision is pure; carrying it out is safe against whoever publishes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from db.artifact_refs import Kept
from workers.artifacts import ArtifactStore, Stored

YOUNG = timedelta(hours=1)  #: what was published later is not looked at
HALF_MADE = timedelta(days=1)  #: what was begun longer ago is not finished any more
AT_ONCE = 50


@dataclass(frozen=True)
class Collected:
    """What went, or would go."""

    removed: tuple[Stored, ...]
    half_made_bytes: int

    @property
    def freed_bytes(self) -> int:
        """All together."""
        return sum(one.size_bytes for one in self.removed) + self.half_made_bytes


def doomed(stored: Iterable[Stored], kept: Kept, now: datetime) -> list[Stored]:
    """Files that nothing points to and nobody published lately.

    What a running attempt publishes is known to nobody before it ends: while one runs, what is younger than it stays.
    """
    before = min(filter(None, (now, kept.running_since))) - YOUNG
    return [one for one in stored if one.sha256 not in kept.digests and one.touched_at < before]


def collect(store: ArtifactStore, read_kept: Callable[[], Kept], now: datetime, *, is_dry: bool = False) -> Collected:
    """Remove what is doomed. What is pointed to is read anew when nobody can publish what is about to go any more."""
    kept = read_kept()
    found = sorted(doomed(store.stored(), kept, now), key=lambda one: one.sha256)
    removed = found if is_dry else [one for part in _parts(found) for one in _remove(store, part, read_kept, now)]
    half_made = min(filter(None, (now, kept.running_since))) - HALF_MADE
    return Collected(tuple(removed), store.sweep(half_made, is_dry=is_dry))


def _remove(
    store: ArtifactStore, found: Sequence[Stored], read_kept: Callable[[], Kept], now: datetime
) -> Iterator[Stored]:
    with store.removal([one.sha256 for one in found], now - YOUNG) as free:
        kept = read_kept()
        for one in doomed((one for one in found if one.sha256 in free), kept, now):
            store.delete(one.sha256)
            yield one


def _parts(found: Sequence[Stored]) -> Iterator[Sequence[Stored]]:
    for start in range(0, len(found), AT_ONCE):
        yield found[start : start + AT_ONCE]
