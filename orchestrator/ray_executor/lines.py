"""The lines to all agents, and how long each node has been silent."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.ray_executor.connection import Connection, RayNode
from orchestrator.ray_executor.line import Event, Line
from orchestrator.ray_executor.renewing import Renewing
from workers.agent import clock
from workers.orders import Post

STOP_S = 30.0


@dataclass
class Lines:
    """One to every node that is a member and has, or is to have, an agent."""

    connection: Connection
    lease_s: float
    post: Callable[[str, RayNode], Post]  #: what the agent of a node is told
    tell: Callable[[Event], None]  #: called from any thread
    lost: Callable[[str], None]  #: called when a node's agent is gone
    by_node: dict[str, Line] = field(default_factory=dict)
    _heard_at: dict[str, float] = field(default_factory=dict)  #: by node: when an agent there last answered
    _renewing: Renewing | None = None

    def __iter__(self) -> Iterator[Line]:
        return iter(list(self.by_node.values()))

    @property
    def are_ready(self) -> bool:
        """Whether all obey, as far as is known."""
        return all(line.is_ready for line in self)

    def ready(self, node: str) -> Line | None:
        """The line to a node's agent, if that obeys and answers."""
        line = self.by_node.get(node)
        return line if line and line.is_ready and self.silence_s(node) < self.lease_s / 2 else None

    def follow(self, members: Mapping[str, RayNode], term: int) -> None:
        """Have lines to the agents of these members, and of no others. Raises ClusterUnreachable."""
        if self._renewing is None and math.isfinite(self.lease_s):
            self._renewing = Renewing(self.lease_s, self.by_node.values)
        for line in self:
            member = members.get(line.node)
            if member is None:
                self.lose(line.node)
            elif line.report and line.report.raylet != member.id:  # the node was started anew
                self.end_agent(line.node)
        for node, member in members.items():
            if node not in self.by_node:
                self.by_node[node] = Line(node, self.connection.agent(self.post(node, member)), term, self.tell)

    def tend(self, expected: Callable[[str], Mapping[str, int]]) -> None:
        """Ask those again that did not answer; `expected` is what is taken to be on a node."""
        for line in self:
            line.tend(expected)

    def hear(self, line: Line) -> None:
        """An event of it came."""
        self._heard_at[line.node] = max(line.heard_at, self._heard_at.get(line.node, 0.0))

    def await_answers_of(self, nodes: set[str]) -> None:
        """Count the silence of nodes from now."""
        self._heard_at |= dict.fromkeys(nodes, clock())

    def silence_s(self, node: str) -> float:
        """For how long its agent has not answered."""
        if node in self.by_node:
            self.hear(self.by_node[node])
        return clock() - self._heard_at.get(node, 0.0)

    def lose(self, node: str) -> None:
        """An agent is gone, or can't be told from one that is."""
        line = self.by_node.pop(node, None)
        if line:
            self.hear(line)
            self.lost(node)

    def end_agent(self, node: str) -> None:
        """End a node's agent, for another one to come."""
        if node in self.by_node:
            self.connection.kill(self.by_node[node].agent)
            self.lose(node)

    def end_agents(self) -> None:
        """Have all agents end what they run, and then themselves."""
        stops = [(line, line.stop(STOP_S)) for line in self if line.is_ready]
        deadline = time.monotonic() + STOP_S + 1
        for line, stop in stops:
            with suppress(Exception):  # gone, or another head's
                stop.result(max(deadline - time.monotonic(), 0))
                self.connection.kill(line.agent)

    def close(self) -> None:
        """Call no agent any more."""
        if self._renewing:
            self._renewing.close()
            self._renewing = None
        for line in self:
            self.hear(line)
        self.by_node.clear()
