"""What a head does beside running tasks: nodes as they come and go, jobs whose time is over, logs that are followed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from db import reports
from db.store import Store
from jobs.task import LogChunk, Node
from orchestrator.executor import Executor

SEEN_EVERY_S = 30.0
LOGS_EVERY_S = 0.25


@dataclass
class Upkeep:
    """Remembers what it wrote, so that nothing is written twice."""

    store: Store
    executor: Executor
    clock: Callable[[], float]
    _seen: object = None  #: nodes, and why some take nothing, as they were stored
    _see_again_at: float = 0.0
    _followed: Sequence[str] = ()
    _logs_at: float = 0.0  #: when logs are copied next
    _earlier: dict[str, int] = field(default_factory=dict)  #: bytes of the followed logs that earlier heads stored
    _parts: list[LogChunk] = field(default_factory=list)  #: fetched, and not stored yet

    @property
    def has_followers(self) -> bool:
        """Whether somebody follows a log now."""
        return bool(self._followed)

    def see(self, nodes: Sequence[Node], refusing: Mapping[str, str]) -> None:
        """Store the nodes where they changed, and now and then that they are still there."""
        found = (tuple(nodes), dict(refusing))
        if found != self._seen or self.clock() >= self._see_again_at:
            self.store.see_nodes(nodes, refusing)
            self._seen, self._see_again_at = found, self.clock() + SEEN_EVERY_S

    def look(self) -> None:
        """See whose logs are followed."""
        self._followed = self.store.followed()
        self._earlier = {attempt: end for attempt, end in self._earlier.items() if attempt in self._followed}

    def copy_logs(self, running: Collection[str]) -> None:
        """Store what the followed ones of the running attempts wrote."""
        wanted = [attempt for attempt in self._followed if attempt in running]
        if not wanted or self.clock() < self._logs_at:
            return
        self._logs_at = self.clock() + LOGS_EVERY_S
        for attempt in wanted:
            if attempt not in self._earlier:
                self._earlier[attempt] = self._stored(attempt)
        self._parts += [part for chunk in self.executor.follow(wanted) if (part := self._new_part(chunk)).text]
        if self._parts:
            self.store.add_log_chunks(self._parts)
            self._parts = []

    def _stored(self, attempt: str) -> int:
        parts = reports.log_chunks(self.store.database, attempt)
        return parts[-1].offset + len(parts[-1].text.encode()) if parts else 0

    def _new_part(self, chunk: LogChunk) -> LogChunk:
        """What of a chunk is not stored yet: an executor begins at the beginning."""
        surplus = max(self._earlier.get(chunk.attempt, 0) - chunk.offset, 0)
        text = chunk.text.encode()[surplus:].decode(errors="replace") if surplus else chunk.text
        return LogChunk(chunk.attempt, chunk.offset + surplus, text)
