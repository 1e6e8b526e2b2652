"""The clients of all agents, and how long each node has been silent."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.ray_executor.agent_client import AgentClient, AgentEvent
from orchestrator.ray_executor.connection import Connection, RayNode
from orchestrator.ray_executor.lease_renewal import LeaseRenewal
from workers import daemon_log
from workers.agent.protocol import AgentConfig
from workers.processes.lease import boot_clock_s

logger = daemon_log.logger(__name__)

STOP_S = 30.0


@dataclass
class AgentClients:
    """One client for every member of the cluster, which has an agent or is about to have one."""

    connection: Connection
    lease_s: float
    configure: Callable[[str, RayNode], AgentConfig]  #: makes the config of a node's agent
    emit: Callable[[AgentEvent], None]  #: called from any thread
    on_lost: Callable[[str], None]  #: called when a node's agent is gone
    by_node: dict[str, AgentClient] = field(default_factory=dict)
    _answered_at: dict[str, float] = field(default_factory=dict)  #: time of the latest answer, by node
    _renewal: LeaseRenewal | None = None

    def __iter__(self) -> Iterator[AgentClient]:
        return iter(list(self.by_node.values()))

    @property
    def are_ready(self) -> bool:
        """Whether all agents have accepted this head, as far as is known."""
        return all(client.is_ready for client in self)

    def ready(self, node: str) -> AgentClient | None:
        """Return the client of a node whose agent is ready and answers; None otherwise."""
        client = self.by_node.get(node)
        return client if client and client.is_ready and self.silence_s(node) < self.lease_s / 2 else None

    def sync(self, members: Mapping[str, RayNode], term: int) -> None:
        """Have a client for the agent of each of these members, and for no others. Raises ClusterUnreachable."""
        if self._renewal is None and math.isfinite(self.lease_s):
            self._renewal = LeaseRenewal(self.lease_s, self.by_node.values)
        for client in self:
            member = members.get(client.node)
            if member is None:
                self.lose(client.node)
            elif client.status and client.status.raylet != member.id:  # the node was restarted
                self.kill(client.node)
        for node, member in members.items():
            if node not in self.by_node:
                agent = self.connection.agent(self.configure(node, member))
                self.by_node[node] = AgentClient(node, agent, term, self.emit)

    def maintain(self, expected: Callable[[str], Mapping[str, int]]) -> None:
        """Call again the agents that did not answer; `expected` returns a node's attempts with their epochs."""
        for client in self:
            client.maintain(expected)

    def note_answer(self, client: AgentClient) -> None:
        """Note when a client was last answered."""
        self._answered_at[client.node] = max(client.answered_at, self._answered_at.get(client.node, 0.0))

    def restart_silence(self, nodes: set[str]) -> None:
        """Count the silence of nodes from now on."""
        self._answered_at |= dict.fromkeys(nodes, boot_clock_s())

    def silence_s(self, node: str) -> float:
        """Return for how long a node's agent has not answered."""
        if node in self.by_node:
            self.note_answer(self.by_node[node])
        return boot_clock_s() - self._answered_at.get(node, 0.0)

    def lose(self, node: str) -> None:
        """Drop the client of an agent that is gone, or can't be told from one that is."""
        client = self.by_node.pop(node, None)
        if client:
            logger.warning("node %s has lost its agent, or the head the node", node, node=node)
            self.note_answer(client)
            self.on_lost(node)

    def kill(self, node: str) -> None:
        """Kill a node's agent, so that a new one is started."""
        if node in self.by_node:
            self.connection.kill(self.by_node[node].agent)
            self.lose(node)

    def stop_all(self) -> None:
        """Have all agents end what they run, then themselves."""
        stops = [(client, client.stop(STOP_S)) for client in self if client.is_ready]
        deadline = time.monotonic() + STOP_S + 1
        for client, stop in stops:
            with suppress(Exception):  # the agent is gone, or another head's
                stop.result(max(deadline - time.monotonic(), 0))
                self.connection.kill(client.agent)

    def close(self) -> None:
        """Stop calling agents, and leave them running."""
        if self._renewal:
            self._renewal.close()
            self._renewal = None
        for client in self:
            self.note_answer(client)
        self.by_node.clear()
