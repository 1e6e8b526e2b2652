"""The free capacity of each node now, when more becomes free, and what is reserved for a blocked task.

The terms are those of EASY backfilling (see `decision`): a reservation begins at its *shadow time*, and the *extra*
capacity is what the blocked task leaves unused then.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from operator import itemgetter

from db.store import Snapshot
from jobs.task import Device, Node, Resources


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What a task requests of each of its nodes; `devices` are the indices of the only ones that will do, if any."""

    resources: Resources
    devices: tuple[int, ...] = ()


#: When an attempt ends, in seconds from now: as learned from earlier ones (EXPECTED), and by its timeout (LATEST).
EndTimes = tuple[float, float]
EXPECTED, LATEST = 0, 1

#: What a node regains when an attempt ends: its two end times, cores, bytes of memory, the kind of its devices, their
#: number, and the devices. A bare tuple, because there are thousands in a decision.
Release = tuple[float, float, int, int, str, int, tuple[Device, ...]]
NO_DEVICES: dict[int, Device] = {}


@dataclass(slots=True)
class Reservation:
    """A node is reserved for a task from its shadow time on; the extra capacity stays free for backfilling."""

    shadow_s: float  #: seconds from now
    estimate: int  #: which of an attempt's end times it trusts: EXPECTED or LATEST
    request: NodeRequest
    extra_cpus: int
    extra_memory_bytes: int
    extra_devices: Mapping[str, int]  #: by kind

    def begins_after(self, end_times: EndTimes) -> bool:
        """Whether an attempt with these end times is over when the reservation begins."""
        return end_times[self.estimate] <= self.shadow_s

    def admits(self, request: NodeRequest, end_times: EndTimes) -> bool:
        """Whether a task may be backfilled without delaying the reservation."""
        if self.begins_after(end_times):
            return True
        resources = request.resources
        return (
            not self.request.resources.is_exclusive
            and not resources.is_exclusive
            and resources.cpus <= self.extra_cpus
            and resources.memory_bytes <= self.extra_memory_bytes
            and resources.devices <= self.extra_devices.get(resources.device_kind, 0)
            and set(request.devices).isdisjoint(self.request.devices)
        )


@dataclass(eq=False, slots=True)
class NodeCapacity:
    """The capacity of one node, as a decision allocates it."""

    node: Node
    cpus: int
    memory_bytes: int
    free: dict[str, dict[int, Device]]  #: by kind and index; quarantined devices are not among them
    usable: Mapping[str, int]  #: number of devices by kind, without quarantined ones
    attempts: int = 0  #: that run
    is_exclusive: bool = False  #: an attempt has the node to itself
    has_builds: bool = False  #: a toolchain is or will be built here, which would disturb an exclusive attempt
    releases: list[Release] = field(default_factory=list)
    sorted_by: int | None = None  #: the end time by which the releases are sorted
    reservation: Reservation | None = None

    def free_count(self, kind: str) -> int:
        """Return how many devices of a kind are free, or of all kinds when `kind` is empty."""
        return len(self.free.get(kind, ())) if kind else sum(map(len, self.free.values()))

    def fits(self, request: NodeRequest) -> bool:
        """Whether the free capacity satisfies a request now."""
        resources = request.resources
        if resources.cpus > self.cpus or resources.memory_bytes > self.memory_bytes:
            return False
        if self.attempts and (self.is_exclusive or resources.is_exclusive):
            return False
        if self.has_builds and resources.is_exclusive:
            return False
        if not resources.devices:
            return True
        free = self.free.get(resources.device_kind, {})
        return len(free) >= resources.devices and all(device in free for device in request.devices)

    def allocate(self, request: NodeRequest, end_times: EndTimes) -> tuple[Device, ...]:
        """Allocate a request that fits, until the end times; return its devices."""
        devices = self._choose_devices(request)
        if self.reservation and not self.reservation.begins_after(end_times):
            self.reservation.extra_cpus -= request.resources.cpus
            self.reservation.extra_memory_bytes -= request.resources.memory_bytes
            self.reservation.extra_devices = Counter(self.reservation.extra_devices) - Counter(
                device.kind for device in devices
            )
        self.occupy(request.resources, devices, end_times)
        return devices

    def _choose_devices(self, request: NodeRequest) -> tuple[Device, ...]:
        """Choose free devices; those that a reservation names come last."""
        free = self.free.get(request.resources.device_kind, {})
        if request.devices:
            return tuple(free[index] for index in request.devices)
        reserved = self.reservation.request.devices if self.reservation else ()
        ordered = sorted(free.values(), key=lambda device: device.index in reserved) if reserved else free.values()
        return tuple(islice(ordered, request.resources.devices))

    def occupy(self, resources: Resources, devices: tuple[Device, ...], end_times: EndTimes) -> None:
        """Subtract what an attempt holds until it ends."""
        self.cpus -= resources.cpus
        self.memory_bytes -= resources.memory_bytes
        self.attempts += 1
        self.is_exclusive = self.is_exclusive or resources.is_exclusive
        kind = devices[0].kind if devices else ""
        free = self.free.get(kind, NO_DEVICES)
        for device in devices:
            if free.pop(device.index, None) is None:  # gone, or quarantined meanwhile
                devices = tuple(other for other in devices if other != device)
        expected_s, latest_s = end_times
        self.releases.append(
            (expected_s, latest_s, resources.cpus, resources.memory_bytes, kind, len(devices), devices)
        )
        self.sorted_by = None

    def available_in_s(self, request: NodeRequest, estimate: int) -> float | None:
        """Return in how many seconds a request will fit, by the EXPECTED or LATEST end times of what runs.

        None when it does not fit even after everything that runs has ended.
        """
        if self.fits(request):
            return 0.0
        resources, indices, kind = request.resources, request.devices, request.resources.device_kind
        attempts_to_end = self.attempts if self.is_exclusive or resources.is_exclusive else 0
        missing_cpus, missing_bytes = resources.cpus - self.cpus, resources.memory_bytes - self.memory_bytes
        free = self.free.get(kind, NO_DEVICES)
        missing_devices = resources.devices - (sum(index in free for index in indices) if indices else len(free))
        if self.sorted_by != estimate:
            self.releases.sort(key=itemgetter(estimate))
            self.sorted_by = estimate
        for expected_s, latest_s, cpus, memory_bytes, device_kind, count, devices in self.releases:
            missing_cpus -= cpus
            missing_bytes -= memory_bytes
            attempts_to_end -= 1
            if device_kind == kind:
                missing_devices -= sum(device.index in indices for device in devices) if indices else count
            if missing_devices <= 0 and missing_cpus <= 0 and missing_bytes <= 0 and attempts_to_end <= 0:
                return latest_s if estimate == LATEST else expected_s
        return None

    def reserve(self, request: NodeRequest, shadow_s: float, estimate: int) -> None:
        """Reserve the node for a blocked task from its shadow time on."""
        cpus, memory_bytes = self.cpus - request.resources.cpus, self.memory_bytes - request.resources.memory_bytes
        devices = defaultdict(int, {kind: len(free) for kind, free in self.free.items()})
        devices[request.resources.device_kind] -= request.resources.devices
        for expected_s, latest_s, released_cpus, released_bytes, kind, count, _ in self.releases:
            if (latest_s if estimate == LATEST else expected_s) <= shadow_s:
                cpus += released_cpus
                memory_bytes += released_bytes
                devices[kind] += count
        self.reservation = Reservation(shadow_s, estimate, request, cpus, memory_bytes, devices)


def end_times(elapsed_s: float, expected_s: float | None, timeout_s: float) -> EndTimes:
    """Return when an attempt that has run for `elapsed_s` ends; by its timeout when no duration was learned.

    An attempt that outlasts its expected duration is expected to take twice as long, again and again.
    """
    expected = expected_s or timeout_s
    while expected <= elapsed_s < timeout_s:
        expected *= 2
    if elapsed_s < expected <= timeout_s:
        return expected - elapsed_s, timeout_s - elapsed_s
    latest_s = max(timeout_s - elapsed_s, 0.0)
    return latest_s, latest_s


def node_capacities(snapshot: Snapshot, nodes: Sequence[Node], now: datetime) -> dict[str, NodeCapacity]:
    """Return what the running attempts leave of each node, by its id."""
    quarantined: dict[str, list[tuple[str, int]]] = {}
    for name, kind, index in snapshot.quarantined:
        quarantined.setdefault(name, []).append((kind, index))
    capacities = {}
    for node in nodes:
        free: dict[str, dict[int, Device]] = {}
        for device in node.devices:
            free.setdefault(device.kind, {})[device.index] = device
        for kind, index in quarantined.get(node.id, ()):
            free.get(kind, {}).pop(index, None)
        usable = {kind: len(devices) for kind, devices in free.items()}
        capacities[node.id] = NodeCapacity(node, node.cpus, node.memory_bytes, free, usable)
    for attempt in snapshot.running:
        elapsed_s = max((now - attempt.started_at).total_seconds(), 0.0)  # clocks may step back
        ends = end_times(elapsed_s, attempt.expected_s, attempt.timeout_s)
        for place in attempt.places:
            if place.node in capacities:
                capacities[place.node].occupy(attempt.resources, place.devices, ends)
    return capacities
