"""The logs that are followed: how far, and what came of them."""

from collections.abc import Iterable, Sequence

from jobs.task import LogChunk


class Logs:
    """Each from its beginning on, for as long as it is followed."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}  #: by attempt: where the next part begins
        self._parts: list[LogChunk] = []

    def follow(self, attempts: Iterable[str]) -> None:
        """Follow these and no others."""
        self.offsets = {attempt: self.offsets.get(attempt, 0) for attempt in attempts}

    def add(self, parts: Sequence[tuple[LogChunk, int]]) -> None:
        """Parts of logs came, each with where it ends."""
        for part, end in parts:
            if self.offsets.get(part.attempt) == part.offset:
                self.offsets[part.attempt] = end
                self._parts.append(part)

    def taken(self) -> list[LogChunk]:
        """What came since this was last asked."""
        found, self._parts = self._parts, []
        return found
