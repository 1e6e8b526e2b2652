"""Allocates and reserves nodes. Tasks with equal needs share one request, which tries no node twice in vain.

Nodes only fill up during a decision, so what did not fit a request once is never tried for it again.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf

from db.store import OpenTask, Snapshot, StoredLock
from jobs.state import Failure
from jobs.task import Node, Pin, Place, Resources
from orchestrator.scheduler import reasons
from orchestrator.scheduler.capacity import EXPECTED, LATEST, EndTimes, NodeCapacity, NodeRequest, node_capacities
from orchestrator.scheduler.node_shapes import NodeShape, count_fitting, count_shapes, node_shape
from orchestrator.scheduler.placement import Placement, same_placement
from orchestrator.scheduler.toolchain_nodes import ToolchainNodes, choose_nodes, group_builds

#: The share of the nodes that may be reserved for tasks of one kind of device. One task at a time would do against
#: starvation; in a large cluster several nodes have to empty at once for large tasks to keep up with small ones.
MAX_RESERVED_SHARE = 0.2


@dataclass(eq=False, slots=True)
class Request:
    """A pending request of tasks with equal needs, and the nodes that may still satisfy it."""

    per_node: NodeRequest
    reason: str  #: what the tasks wait for when they can't start
    is_unschedulable: bool = False  #: not even an empty cluster without cordons fits it
    is_possible: bool = True  #: schedulable nodes could fit it
    node_ids: frozenset[str] | None = None  #: the only nodes that may be used; None: all
    candidates: Sequence[NodeCapacity] = ()  #: nearly full ones first, so that empty nodes stay for whole-node tasks
    position: int = 0  #: of the first candidate that was not tried in vain
    reserved: list[NodeCapacity] = field(default_factory=list)  #: nodes reserved for others that it fits now
    reservations_seen: int = 0  #: number of reservations when `reserved` was last extended
    refused: EndTimes = (inf, inf)  #: a task with these end times was not admitted to enough reserved nodes
    available: dict[int, list[tuple[float, int]]] = field(default_factory=dict)  #: heaps, by estimate
    is_exhausted: bool = False  #: too few nodes fit it now, even if all reservations are ignored
    failure: Failure | None = None  #: no node will ever satisfy it

    def allows(self, capacity: NodeCapacity) -> bool:
        """Whether the request may use a node at all."""
        return self.node_ids is None or capacity.node.id in self.node_ids


class Allocator:
    """The capacities and reservations of one decision."""

    def __init__(self, snapshot: Snapshot, nodes: Sequence[Node], now: datetime) -> None:
        self._nodes, self._snapshot = {node.id: node for node in nodes}, snapshot
        self._capacities = node_capacities(snapshot, nodes, now)
        self._schedulable = [
            capacity for capacity in self._capacities.values() if capacity.node.id not in snapshot.cordoned
        ]
        self._reserved: list[NodeCapacity] = []
        self._max_reserved = MAX_RESERVED_SHARE * len(self._schedulable)
        self._reserved_counts: Counter[str] = Counter()  #: nodes, by the kind of device that they are reserved for
        self._available: dict[object, list[tuple[float, int]]] = {}  #: heaps as first computed, for equal requests
        self._requests: dict[object, Request] = {}
        self._by_free_count: dict[str, tuple[list[int], list[NodeCapacity]]] = {}  #: by kind of device
        self._usable_shapes = Counter(node_shape(capacity.node, capacity.usable) for capacity in self._schedulable)
        self._toolchain_nodes: list[tuple[str, ToolchainNodes]] = []  #: with the names of the toolchains

    def request_for(self, task: OpenTask, placement: Placement | None = None) -> Request:
        """Return the request of a task, the same object for equal needs; with a placement it runs there or waits."""
        key = task.request_key if placement is None else (task.request_key, placement)
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = self._new_request(task, placement, task.avoids)
        return request

    def request_with_toolchain(self, task: OpenTask, stored: StoredLock, placement: Placement | None = None) -> Request:
        """Return the request of a task that needs a toolchain."""
        key = (task.request_key, stored.digest, placement)
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = self._new_request(task, placement, ())
            if request.is_possible:
                self._require_toolchain(request, stored, task.avoids)
        return request

    def placement_for(self, task: OpenTask, places: Sequence[Place], lock: str = "") -> Placement | None:
        """Return where an earlier attempt ran if the task can run there too, now or later, with a toolchain's lock."""
        node = self._nodes.get(places[0].node) if places else None
        if node is None or node.id in self._snapshot.cordoned or node.id in task.avoids or node.toolchains.get(lock):
            return None
        resources, quarantined = task.resources, self._snapshot.quarantined
        bad = {index for name, kind, index in quarantined if (name, kind) == (node.id, resources.device_kind)}
        if not node_shape(node, self._capacities[node.id].usable).can_fit(resources):
            return None
        return same_placement(places, resources, node, bad)

    def block_exclusive_on_build_nodes(self) -> None:
        """Allocate no exclusive use of the nodes that are to build a toolchain for the requests made so far."""
        for _, choice in self._toolchain_nodes:
            for name in choice.to_build:
                self._capacities[name].has_builds = True

    def builds(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes that should build each requested toolchain now, by its name, disturbing no exclusive use."""
        exclusive = {name for name, capacity in self._capacities.items() if capacity.is_exclusive}
        return group_builds(self._toolchain_nodes, exclusive)

    def allocate_with_affinity(self, task: OpenTask, request: Request, end_times: EndTimes) -> tuple[Place, ...] | None:
        """Allocate devices on which the earlier runs that a task is compared with ran, if they are free now and not
        reserved."""
        for places in () if request.per_node.devices else task.affinity:
            placement = self.placement_for(task, places)
            capacity = self._capacities[placement.node] if placement else None
            if placement and capacity and request.allows(capacity) and capacity.reservation is None:
                node_request = NodeRequest(request.per_node.resources, placement.devices)
                if capacity.fits(node_request):
                    return (Place(placement.node, capacity.allocate(node_request, end_times)),)
        return None

    def allocate(self, request: Request, end_times: EndTimes) -> tuple[Place, ...] | None:
        """Allocate all the nodes of a request now, until the end times; None when too few fit."""
        count = request.per_node.resources.nodes
        chosen = _find_unreserved(request, count)
        if len(chosen) < count and self._reserved:
            chosen = chosen + self._find_backfill(request, count - len(chosen), end_times)
        if len(chosen) < count:
            request.is_exhausted = len(request.candidates) + len(request.reserved) < count
            return None
        return tuple(Place(capacity.node.id, capacity.allocate(request.per_node, end_times)) for capacity in chosen)

    def _find_backfill(self, request: Request, count: int, end_times: EndTimes) -> list[NodeCapacity]:
        """Return up to `count` nodes reserved for others whose start the task would not delay."""
        fresh = self._reserved[request.reservations_seen :]
        request.reservations_seen = len(self._reserved)
        fitting = [capacity for capacity in fresh if request.allows(capacity) and capacity.fits(request.per_node)]
        if fitting:
            request.reserved, request.refused = request.reserved + fitting, (inf, inf)
        if end_times[EXPECTED] >= request.refused[EXPECTED] and end_times[LATEST] >= request.refused[LATEST]:
            return []
        request.reserved = [capacity for capacity in request.reserved if capacity.fits(request.per_node)]
        admitting = (
            capacity
            for capacity in request.reserved
            if capacity.reservation is not None and capacity.reservation.admits(request.per_node, end_times)
        )
        chosen = list(islice(admitting, count))
        if len(chosen) < count:
            request.refused = end_times
        return chosen

    def can_reserve(self, kind: str) -> bool:
        """Whether nodes may be reserved for one more task that needs this kind of device."""
        count = self._reserved_counts[kind]
        return count == 0 or count + 1 <= self._max_reserved

    def reserve(self, request: Request, estimate: int) -> None:
        """Reserve the unreserved nodes that become available soonest for a blocked task, if there are enough.

        `estimate` says which end times to trust, of what runs and of what may be backfilled: EXPECTED or LATEST.
        """
        resources, chosen = request.per_node.resources, list[tuple[float, int]]()
        available = self._available_nodes(request, estimate)
        while available and len(chosen) < resources.nodes:
            earlier_s, index = heappop(available)
            capacity = self._schedulable[index]
            shadow_s = None if capacity.reservation else capacity.available_in_s(request.per_node, estimate)
            if shadow_s is not None and shadow_s > earlier_s:  # it has filled up since
                heappush(available, (shadow_s, index))
            elif shadow_s is not None:
                chosen.append((shadow_s, index))
        if len(chosen) == resources.nodes:
            self._reserved_counts[resources.device_kind] += resources.nodes
            for _, index in chosen:
                self._schedulable[index].reserve(request.per_node, max(chosen)[0], estimate)
                self._reserved.append(self._schedulable[index])

    def _available_nodes(self, request: Request, estimate: int) -> list[tuple[float, int]]:
        """Return a heap of nodes by when they become available, as of the first time that equal needs asked for it."""
        if estimate not in request.available:
            per_node, resources = request.per_node, request.per_node.resources
            key = (
                request.node_ids, resources.cpus, resources.memory_bytes, resources.devices, resources.device_kind,
                resources.is_exclusive, per_node.devices, estimate,
            )  # fmt: skip
            if key not in self._available:
                indices = (
                    self._indices.values()
                    if request.node_ids is None
                    else [self._indices[node] for node in request.node_ids]
                )
                times = ((self._schedulable[index].available_in_s(per_node, estimate), index) for index in indices)
                self._available[key] = [(time_s, index) for time_s, index in times if time_s is not None]
                heapify(self._available[key])
            request.available[estimate] = self._available[key].copy()
        return request.available[estimate]

    @cached_property
    def _indices(self) -> dict[str, int]:
        """The index of each node among the schedulable ones."""
        return {capacity.node.id: index for index, capacity in enumerate(self._schedulable)}

    def _new_request(self, task: OpenTask, placement: Placement | None, avoids: tuple[str, ...]) -> Request:
        resources, pin = task.resources, task.pin
        if pin is not None:
            return self._pinned_request(NodeRequest(resources, pin.devices), pin)
        if placement is not None:
            return Request(
                NodeRequest(resources, placement.devices),
                reasons.waits_for_placement(resources, placement),
                node_ids=frozenset({placement.node}),
                candidates=[self._capacities[placement.node]],
            )
        per_node = NodeRequest(resources)
        if count_fitting(resources, self._usable_shapes) < resources.nodes:
            return self._impossible_request(per_node)
        reason = reasons.waits_for_capacity(resources, None)
        request = Request(per_node, reason, candidates=self._nearly_full_first(resources))
        if avoids:
            self._avoid(request, avoids)
        return request

    def _impossible_request(self, per_node: NodeRequest) -> Request:
        """A request that only cordoned or quarantined capacity could satisfy, or none at all."""
        resources, nodes = per_node.resources, self._nodes.values()
        if count_fitting(resources, self._shapes) < resources.nodes:
            reason = reasons.exceeds_cluster(resources, self._shapes)
            return Request(per_node, reason, is_unschedulable=True, is_possible=False)
        fitting = [node for node in nodes if node_shape(node).can_fit(resources)]
        obstacles = reasons.list_obstacles(resources, fitting, self._snapshot.cordoned, self._snapshot.quarantined)
        return Request(per_node, reasons.waits_for_operator(resources, None, obstacles), is_possible=False)

    @cached_property
    def _shapes(self) -> Counter[NodeShape]:
        return count_shapes(self._nodes.values())

    def _nearly_full_first(self, resources: Resources) -> Sequence[NodeCapacity]:
        """Return the schedulable nodes that have enough free devices, nearly full ones first."""
        kind = resources.device_kind if resources.devices else ""
        if kind not in self._by_free_count:
            ordered = sorted(self._schedulable, key=lambda capacity: (capacity.free_count(kind), capacity.cpus))
            self._by_free_count[kind] = [capacity.free_count(kind) for capacity in ordered], ordered
        counts, ordered = self._by_free_count[kind]
        return ordered[bisect_left(counts, resources.devices) :] if resources.devices else ordered

    def _avoid(self, request: Request, avoids: Collection[str]) -> None:
        """Exclude the avoided nodes if enough others could fit the request; otherwise put them last."""
        resources = request.per_node.resources
        preferred = [capacity for capacity in request.candidates if capacity.node.id not in avoids]
        fitting = [
            capacity.node.id
            for capacity in self._schedulable
            if capacity.node.id not in avoids and node_shape(capacity.node, capacity.usable).can_fit(resources)
        ]
        if len(fitting) >= resources.nodes:
            request.candidates, request.node_ids = preferred, frozenset(fitting)
        else:
            avoided = [capacity for capacity in request.candidates if capacity.node.id in avoids]
            request.candidates = [*preferred, *avoided]

    def _require_toolchain(self, request: Request, stored: StoredLock, avoids: Collection[str]) -> None:
        """Restrict a request to the nodes that have built a toolchain."""
        resources, closed = request.per_node.resources, self._snapshot.cordoned
        fitting = [
            capacity.node
            for capacity in self._schedulable
            if request.allows(capacity) and node_shape(capacity.node, capacity.usable).can_fit(resources)
        ]
        cordoned: list[Node] = []
        if not request.node_ids:
            nodes = self._nodes.values()
            cordoned = [node for node in nodes if node.id in closed and node_shape(node).can_fit(resources)]
        choice = choose_nodes(stored, fitting, cordoned, resources.nodes, avoids)
        self._toolchain_nodes.append((stored.lock.name, choice))
        if choice.ready:
            request.node_ids = choice.ready
            request.candidates = [capacity for capacity in request.candidates if capacity.node.id in choice.ready]
        else:
            request.is_possible, request.reason, request.failure = False, choice.reason, choice.failure

    def _pinned_request(self, per_node: NodeRequest, pin: Pin) -> Request:
        resources, node = per_node.resources, self._nodes.get(pin.node)
        problem = reasons.exceeds_pin(resources, pin, node)
        if problem or node is None:
            return Request(per_node, problem or "", is_unschedulable=True, is_possible=False)
        snapshot, capacity = self._snapshot, self._capacities[pin.node]
        obstacles = reasons.list_obstacles(resources, [node], snapshot.cordoned, snapshot.quarantined, pin.devices)
        usable = capacity.usable.get(resources.device_kind, 0)
        if pin.node in snapshot.cordoned or (obstacles and (pin.devices or usable < resources.devices)):
            return Request(per_node, reasons.waits_for_operator(resources, pin, obstacles), is_possible=False)
        reason = reasons.waits_for_capacity(resources, pin)
        return Request(per_node, reason, node_ids=frozenset({pin.node}), candidates=[capacity])


def _find_unreserved(request: Request, count: int) -> list[NodeCapacity]:
    """Return up to `count` unreserved nodes that fit a request now."""
    per_node, chosen = request.per_node, []
    for index in range(request.position, len(request.candidates)):
        capacity = request.candidates[index]
        if capacity.reservation is None and capacity.fits(per_node):
            chosen.append(capacity)
            if len(chosen) == count:
                return chosen
        elif not chosen:
            request.position = index + 1
    request.candidates, request.position = chosen, 0
    return chosen
