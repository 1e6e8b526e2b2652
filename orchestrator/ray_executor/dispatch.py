"""Dispatches attempts to the agents of their nodes, with their devices held by Ray, and all of a gang or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.task import Attempt
from orchestrator.ray_executor.agent_clients import AgentClients
from orchestrator.ray_executor.connection import reason_of
from orchestrator.ray_executor.gangs import part_of
from orchestrator.ray_executor.in_flight import InFlightAttempt, InFlightAttempts
from orchestrator.ray_executor.placement_groups import PlacementGroups, bundles_of
from workers.agent.protocol import LaunchRequest

PORT_S = 5.0


@dataclass
class Dispatcher:
    """Sends launch requests, and records the attempts as in flight."""

    in_flight: InFlightAttempts
    clients: AgentClients
    groups: PlacementGroups
    holds_devices: bool  #: a local Ray has no other users, and no placement groups are made on it

    def dispatch(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        """Dispatch attempts; return the reasons for those that can't be. Raises ClusterUnreachable.

        Attempts that are in flight already go on as they are.
        """
        attempts = [attempt for attempt in attempts if attempt.id not in self.in_flight.by_id]
        refused = {attempt.id: reason for attempt in attempts if (reason := self._obstacle(attempt))}
        groups = self._hold_devices([attempt for attempt in attempts if attempt.id not in refused])
        requests: dict[str, list[LaunchRequest]] = {}
        for attempt in attempts:
            if attempt.id not in refused and (reason := self._prepare(attempt, groups.get(attempt.id), requests)):
                refused[attempt.id] = reason
        for node, of_node in requests.items():
            self.clients.by_node[node].start(of_node)
        return refused

    def _obstacle(self, attempt: Attempt) -> str | None:
        """Return why one of the nodes can't be reached; None when all can."""
        for place in attempt.places:
            if self.clients.ready(place.node) is None:
                return f"node {place.node} does not answer"
        return None

    def _hold_devices(self, attempts: Sequence[Attempt]) -> Mapping[str, str]:
        """Return the placement groups of attempts, by the attempts' ids."""
        if not self.holds_devices or not attempts:
            return {}
        return self.groups.hold({attempt.id: bundles_of(attempt, self._raylets(attempt)) for attempt in attempts})

    def _raylets(self, attempt: Attempt) -> list[str]:
        statuses = [self.clients.by_node[place.node].status for place in attempt.places]
        return [status.raylet for status in statuses if status]

    def _prepare(self, attempt: Attempt, group: str | None, requests: dict[str, list[LaunchRequest]]) -> str | None:
        """Add the launch request of each node; return why that can't be done, None when it is."""
        nodes = [place.node for place in attempt.places]
        if self.holds_devices and group is None:
            return f"Ray has no free resources on {', '.join(nodes)}: another user of the cluster holds them"
        try:
            parts = self._parts(attempt)
        except Exception as error:  # whatever its agent, or Ray, has against it
            if group:
                self.groups.release(group)
            return f"node {nodes[0]} has no port for its gang: {reason_of(error)}"
        self.in_flight.by_id[attempt.id] = InFlightAttempt(attempt.id, attempt.epoch, nodes, group)
        for node, part in zip(nodes, parts, strict=True):
            requests.setdefault(node, []).append(LaunchRequest(part, group))
        return None

    def _parts(self, attempt: Attempt) -> Sequence[Attempt]:
        """Return the part of each node."""
        if len(attempt.places) == 1:
            return [attempt]
        first = self.clients.by_node[attempt.places[0].node]
        port = first.free_port().result(PORT_S)
        return [part_of(attempt, rank, first.description.address, port) for rank in range(len(attempt.places))]
