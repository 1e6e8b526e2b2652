"""Placement groups: one per attempt, cached for a moment for the next attempt of the same shape.

Making a group costs milliseconds, but Ray 2.60 takes up to a second to see that what a removed one held is free again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from jobs.task import Attempt
from orchestrator.ray_cluster.ray_commands import CPU_DEVICE
from orchestrator.ray_executor.connection import GROUP_PREFIX, Bundles, Connection
from workers.processes.lease import boot_clock_s

IDLE_S = 2.0
TRIES = 3  #: of a second each
CREATE_S = 10.0


@dataclass(frozen=True)
class _Group:
    name: str
    bundles: Bundles
    handle: Any  #: Ray's


class PlacementGroups:
    """The placement groups of one connection: those held by attempts, and the cached ones."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: dict[str, _Group] = {}  #: by name
        self._cached: list[tuple[float, _Group]] = []  #: with the time of their release, oldest first

    def hold(self, requested: Mapping[str, Bundles]) -> dict[str, str]:
        """Hold groups for attempts; return their names by attempt, without those that Ray can't place in time.

        Raises ClusterUnreachable, and holds nothing then.
        """
        reused = {attempt: group for attempt, bundles in requested.items() if (group := self._reuse(bundles))}
        missing = {attempt: bundles for attempt, bundles in requested.items() if attempt not in reused}
        created: dict[str, _Group] = {}
        try:
            if missing:
                self._remove_overlapping(missing.values())
                self._connection.ask(lambda: self._create(missing, created), CREATE_S)
                self._connection.ask(lambda: self._keep_ready(created), CREATE_S)
        except BaseException:
            # after the creations that are still under way
            self._connection.later(lambda: self._remove([*reused.values(), *created.values()]))
            raise
        self._held |= {group.name: group for group in [*reused.values(), *created.values()]}
        return {attempt: group.name for attempt, group in {**reused, **created}.items()}

    def release(self, name: str) -> None:
        """Cache a held group; one that an earlier head made is removed."""
        group = self._held.pop(name, None)
        if group is None:
            self._connection.remove_group(name)
        else:
            self._cached.append((boot_clock_s(), group))

    def remove_idle(self) -> None:
        """Remove cached groups that were not used for a moment."""
        oldest = boot_clock_s() - IDLE_S
        self._remove([group for since, group in self._cached if since < oldest])
        self._cached = [(since, group) for since, group in self._cached if since >= oldest]

    def remove_unknown(self, known: Collection[str]) -> None:
        """Remove the groups that earlier heads made and no known attempt holds."""
        current = {*self._held, *(group.name for _, group in self._cached)}
        for name in self._connection.groups():
            if name not in known and name not in current:
                self._connection.remove_group(name)

    def remove_all(self) -> None:
        """Remove all held and cached groups."""
        self._remove([*self._held.values(), *(group for _, group in self._cached)])
        self.forget()

    def forget(self) -> None:
        """Forget all groups, and leave them in Ray."""
        self._held, self._cached = {}, []

    def _remove(self, groups: Iterable[_Group]) -> None:
        for group in groups:
            self._connection.remove_group(group.handle)

    def _reuse(self, bundles: Bundles) -> _Group | None:
        for index, (_, group) in enumerate(self._cached):
            if group.bundles == bundles:
                del self._cached[index]
                return group
        return None

    def _create(self, requested: Mapping[str, Bundles], created: dict[str, _Group]) -> None:
        for attempt, bundles in requested.items():
            name = f"{GROUP_PREFIX}{uuid4().hex}"
            created[attempt] = _Group(name, bundles, self._connection.make_group(name, bundles))

    def _remove_overlapping(self, requested: Collection[Bundles]) -> None:
        """Remove cached groups on the nodes where new ones are to be made: they may hold what those need."""
        nodes = {node for bundles in requested for node, _ in bundles}
        overlapping = [group for _, group in self._cached if nodes & {node for node, _ in group.bundles}]
        self._remove(overlapping)
        self._cached = [(since, group) for since, group in self._cached if group not in overlapping]

    def _keep_ready(self, created: dict[str, _Group]) -> None:
        """Wait for new groups, all together for `TRIES`; remove those that are not ready then."""
        tries = TRIES
        for attempt, group in list(created.items()):
            while not (is_ready := self._connection.wait_for_group(group.handle)) and tries > 0:
                tries -= 1
            if not is_ready:
                self._connection.remove_group(created.pop(attempt).handle)


def bundles_of(attempt: Attempt, ray_nodes: Sequence[str]) -> Bundles:
    """Return what an attempt holds on each of its nodes; `ray_nodes` are Ray's ids of them, by rank."""
    bundles = []
    for place, ray_node in zip(attempt.places, ray_nodes, strict=True):
        amounts: dict[str, float] = {"CPU": attempt.cpus}
        if place.devices:
            amounts[CPU_DEVICE if place.devices[0].kind == "cpu" else "GPU"] = len(place.devices)
        bundles.append((ray_node, tuple((name, amount) for name, amount in amounts.items() if amount)))
    return tuple(bundles)
