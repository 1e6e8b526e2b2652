"""Handing attempts to the agents of their nodes: with their devices held in Ray's books, and all of a gang or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.task import Attempt
from orchestrator.ray_executor.book import Book
from orchestrator.ray_executor.connection import reason_of
from orchestrator.ray_executor.groups import Groups, shape_of
from orchestrator.ray_executor.handed import Handed, share
from orchestrator.ray_executor.lines import Lines
from workers.orders import Order

PORT_S = 5.0


@dataclass
class Handing:
    """What it takes."""

    book: Book
    lines: Lines
    groups: Groups
    has_books: bool  #: a local Ray has no other users, and nothing is held in its books

    def hand_over(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        """Returns those that can't be handed over, each with the reason. Raises ClusterUnreachable.

        What was handed over already goes on as it is.
        """
        attempts = [attempt for attempt in attempts if attempt.id not in self.book.handed]
        refused = {attempt.id: reason for attempt in attempts if (reason := self._obstacle(attempt))}
        groups = self._hold([attempt for attempt in attempts if attempt.id not in refused])
        orders: dict[str, list[Order]] = {}
        for attempt in attempts:
            if attempt.id not in refused and (reason := self._write_down(attempt, groups.get(attempt.id), orders)):
                refused[attempt.id] = reason
        for node, given in orders.items():
            self.lines.by_node[node].start(given)
        return refused

    def _obstacle(self, attempt: Attempt) -> str | None:
        """Why a node can't be handed anything, if so."""
        for place in attempt.places:
            if self.lines.ready(place.node) is None:
                return f"node {place.node} does not answer"
        return None

    def _hold(self, attempts: Sequence[Attempt]) -> Mapping[str, str]:
        """The groups that hold what attempts need, by their ids."""
        if not self.has_books or not attempts:
            return {}
        return self.groups.hold({attempt.id: shape_of(attempt, self._raylets(attempt)) for attempt in attempts})

    def _raylets(self, attempt: Attempt) -> list[str]:
        reports = [self.lines.by_node[place.node].report for place in attempt.places]
        return [report.raylet for report in reports if report]

    def _write_down(self, attempt: Attempt, group: str | None, orders: dict[str, list[Order]]) -> str | None:
        """Add what each node is to be handed of an attempt; why that can't be, if so."""
        nodes = [place.node for place in attempt.places]
        if self.has_books and group is None:
            return f"Ray has no room on {', '.join(nodes)}: somebody else holds what looked free"
        try:
            parts = self._parts(attempt)
        except Exception as error:  # whatever its agent, or Ray, has against it
            if group:
                self.groups.release(group)
            return f"node {nodes[0]} has no port for its gang: {reason_of(error)}"
        self.book.handed[attempt.id] = Handed(attempt.id, attempt.epoch, nodes, group)
        for node, part in zip(nodes, parts, strict=True):
            orders.setdefault(node, []).append(Order(part, group))
        return None

    def _parts(self, attempt: Attempt) -> Sequence[Attempt]:
        """What each node of an attempt is handed."""
        if len(attempt.places) == 1:
            return [attempt]
        first = self.lines.by_node[attempt.places[0].node]
        port = first.free_port().result(PORT_S)
        return [share(attempt, rank, first.described.address, port) for rank in range(len(attempt.places))]
