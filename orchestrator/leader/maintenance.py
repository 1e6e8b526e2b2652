"""What a head does beside running tasks: records nodes as they come and go, and copies logs that are followed."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from db.reads import reports
from db.store import Store
from jobs.task import LogChunk, Node
from orchestrator.executor import Executor
from orchestrator.leader.statistics import Statistics
from workers import daemon_log

logger = daemon_log.logger(__name__)

NODES_EVERY_S = 30.0
LOGS_EVERY_S = 0.25


@dataclass
class Maintenance:
    """Remembers what it stored, so that nothing is stored twice."""

    store: Store
    executor: Executor
    clock: Callable[[], float]
    statistics: Statistics
    _nodes: object = None  #: the nodes and cordons as they were stored
    _nodes_at: float = 0.0  #: when they are stored next even if they did not change
    _followed: Sequence[str] = ()
    _logs_at: float = 0.0  #: when logs are copied next
    _stored_bytes: dict[str, int] = field(default_factory=dict)  #: of the followed logs, by earlier heads
    _chunks: list[LogChunk] = field(default_factory=list)  #: read, and not stored yet

    @property
    def has_followers(self) -> bool:
        """Whether somebody follows a log now."""
        return bool(self._followed)

    def record_nodes(self, nodes: Sequence[Node], cordoned: Mapping[str, str]) -> None:
        """Store the nodes when they changed, and now and then that they are still up."""
        current = (tuple(nodes), dict(cordoned))
        if current != self._nodes or self.clock() >= self._nodes_at:
            self.store.record_nodes(nodes, cordoned)
            self._nodes, self._nodes_at = current, self.clock() + NODES_EVERY_S
            self._log_nodes({node.id: cordoned.get(node.id) for node in nodes})

    def _log_nodes(self, up: dict[str, str | None]) -> None:
        """Log what is new of nodes; `up` says why each of those that are up takes no task."""
        before, self.statistics.nodes = self.statistics.nodes, up
        for node in before.keys() - up.keys():
            self.statistics.lost_nodes += 1
            logger.warning("node %s is down", node, node=node)
        for node, reason in up.items():
            if node not in before or before[node] != reason:
                state = f"takes no task: {reason}" if reason else "is up"
                logger.log(logging.WARNING if reason else logging.INFO, "node %s %s", node, state, node=node)

    def update_followed(self) -> None:
        """Read whose logs are followed."""
        self._followed = self.store.followed()
        self._stored_bytes = {attempt: end for attempt, end in self._stored_bytes.items() if attempt in self._followed}

    def copy_logs(self, running: Collection[str]) -> None:
        """Store what the followed ones of the running attempts wrote."""
        wanted = [attempt for attempt in self._followed if attempt in running]
        if not wanted or self.clock() < self._logs_at:
            return
        self._logs_at = self.clock() + LOGS_EVERY_S
        for attempt in wanted:
            if attempt not in self._stored_bytes:
                chunks = reports.log_chunks(self.store.database, attempt)
                self._stored_bytes[attempt] = chunks[-1].offset + len(chunks[-1].text.encode()) if chunks else 0
        new = (self._without_stored(chunk) for chunk in self.executor.read_logs(wanted))
        self._chunks += [chunk for chunk in new if chunk.text]
        if self._chunks:
            self.store.add_log_chunks(self._chunks)
            self._chunks = []

    def _without_stored(self, chunk: LogChunk) -> LogChunk:
        """Cut off what an earlier head stored: an executor reads each log from its beginning."""
        surplus = max(self._stored_bytes.get(chunk.attempt, 0) - chunk.offset, 0)
        text = chunk.text.encode()[surplus:].decode(errors="replace") if surplus else chunk.text
        return LogChunk(chunk.attempt, chunk.offset + surplus, text)
