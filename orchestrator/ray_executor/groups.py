"""Placement groups: one for each attempt, kept for a moment after it for the next one of the same shape.

Making a group costs milliseconds, but Ray 2.60 takes up to a second to see that what a removed one held is free again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from jobs.task import Attempt
from orchestrator.cluster.ray_commands import CPU_DEVICE
from orchestrator.ray_executor.connection import GROUP_PREFIX, Connection, Shape
from workers.agent import clock

IDLE_S = 2.0
TRIES = 3  #: of a second each
MAKING_S = 10.0


@dataclass(frozen=True)
class _Group:
    name: str
    shape: Shape
    made: Any  #: Ray's


class Groups:
    """Those of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: dict[str, _Group] = {}  #: by name
        self._free: list[tuple[float, _Group]] = []  #: since when; the oldest first

    def hold(self, wanted: Mapping[str, Shape]) -> dict[str, str]:
        """Groups for attempts, by their ids: names; those that Ray finds no room for in time are missing.

        Raises ClusterUnreachable, and holds nothing then.
        """
        found = {attempt: group for attempt, shape in wanted.items() if (group := self._reuse(shape))}
        missing = {attempt: shape for attempt, shape in wanted.items() if attempt not in found}
        made: dict[str, _Group] = {}
        try:
            if missing:
                self._drop_free(missing.values())
                self._connection.ask(lambda: self._make(missing, made), MAKING_S)
                self._connection.ask(lambda: self._keep_ready(made), MAKING_S)
        except BaseException:
            self._connection.later(lambda: self._remove([*found.values(), *made.values()]))  # once no more are made
            raise
        self._held |= {group.name: group for group in [*found.values(), *made.values()]}
        return {attempt: group.name for attempt, group in {**found, **made}.items()}

    def release(self, name: str) -> None:
        """Let go of a group; one that an earlier head made is removed."""
        group = self._held.pop(name, None)
        if group is None:
            self._connection.remove_group(name)
        else:
            self._free.append((clock(), group))

    def drop_idle(self) -> None:
        """Remove what nobody wanted for a moment."""
        oldest = clock() - IDLE_S
        self._remove([group for since, group in self._free if since < oldest])
        self._free = [(since, group) for since, group in self._free if since >= oldest]

    def drop_unknown(self, known: Collection[str]) -> None:
        """Remove what earlier heads made and nobody needs."""
        for name in self._connection.groups():
            if name not in known and name not in self._held and all(group.name != name for _, group in self._free):
                self._connection.remove_group(name)

    def drop_all(self) -> None:
        """Remove all that is held or kept."""
        self._remove([*self._held.values(), *(group for _, group in self._free)])
        self.forget()

    def forget(self) -> None:
        """Know of no group any more."""
        self._held, self._free = {}, []

    def _remove(self, groups: Iterable[_Group]) -> None:
        for group in groups:
            self._connection.remove_group(group.made)

    def _reuse(self, shape: Shape) -> _Group | None:
        for at, (_, group) in enumerate(self._free):
            if group.shape == shape:
                del self._free[at]
                return group
        return None

    def _make(self, wanted: Mapping[str, Shape], made: dict[str, _Group]) -> None:
        for attempt, shape in wanted.items():
            name = f"{GROUP_PREFIX}{uuid4().hex}"
            made[attempt] = _Group(name, shape, self._connection.make_group(name, shape))

    def _drop_free(self, shapes: Collection[Shape]) -> None:
        """Where new groups are made what is kept there may be in their way."""
        nodes = {node for shape in shapes for node, _ in shape}
        in_the_way = [group for _, group in self._free if nodes & {node for node, _ in group.shape}]
        self._remove(in_the_way)
        self._free = [(since, group) for since, group in self._free if group not in in_the_way]

    def _keep_ready(self, made: dict[str, _Group]) -> None:
        """Wait for groups, all together for `TRIES`; those that are not ready then are removed."""
        tries = TRIES
        for attempt, group in list(made.items()):
            while not (is_ready := self._connection.wait_for_group(group.made)) and tries > 0:
                tries -= 1
            if not is_ready:
                self._connection.remove_group(made.pop(attempt).made)


def shape_of(attempt: Attempt, ray_nodes: Sequence[str]) -> Shape:
    """What an attempt holds on each of its nodes; `ray_nodes` are Ray's names of them, by rank."""
    bundles = []
    for place, ray_node in zip(attempt.places, ray_nodes, strict=True):
        held: dict[str, float] = {"CPU": attempt.cpus}
        if place.devices:
            held[CPU_DEVICE if place.devices[0].kind == "cpu" else "GPU"] = len(place.devices)
        bundles.append((ray_node, tuple((name, amount) for name, amount in held.items() if amount)))
    return tuple(bundles)
