"""The logs that are followed: how far each was read, and what was read since. Pure."""

from collections.abc import Iterable, Sequence

from jobs.task import LogChunk


class FollowedLogs:
    """Reads each log from its beginning, for as long as it is followed."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}  #: where the next chunk begins, by attempt
        self._chunks: list[LogChunk] = []

    def follow(self, attempts: Iterable[str]) -> None:
        """Follow these attempts and no others."""
        self.offsets = {attempt: self.offsets.get(attempt, 0) for attempt in attempts}

    def add(self, chunks: Sequence[tuple[LogChunk, int]]) -> None:
        """Add chunks, each with the offset of its end; ignore those that are not the next ones."""
        for chunk, end in chunks:
            if self.offsets.get(chunk.attempt) == chunk.offset:
                self.offsets[chunk.attempt] = end
                self._chunks.append(chunk)

    def take(self) -> list[LogChunk]:
        """Return the chunks added since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks
