"""What is left of each node now, when more of it will be, and what of it is kept for a task."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from operator import itemgetter

from db.store import Snapshot
from jobs.task import Device, Node, Resources


@dataclass(frozen=True, slots=True)
class Share:
    """What a task takes of each of its nodes; `devices` where it must be these of them."""

    need: Resources
    devices: tuple[int, ...] = ()


#: When an attempt ends, in seconds from now: as learned from its like, and by its timeout at the latest.
Ends = tuple[float, float]
EXPECTED, LATEST = 0, 1

#: What a node gets back when an attempt ends: its two ends, cores, bytes of memory, the one kind of its devices, their
#: number, and they. A bare tuple, because there are thousands in a decision.
Release = tuple[float, float, int, int, str, int, tuple[Device, ...]]
NOTHING: dict[int, Device] = {}


@dataclass(slots=True)
class Hold:
    """A room is kept for a task from a time on; this much of it the task leaves for others."""

    at_s: float  #: from now
    by: int  #: which of an attempt's ends count: EXPECTED or LATEST
    share: Share
    cpus: int
    memory_bytes: int
    devices: Mapping[str, int]  #: by kind

    def is_over_by(self, ends: Ends) -> bool:
        """Whether an attempt that ends so is gone before the task begins."""
        return ends[self.by] <= self.at_s

    def admits(self, share: Share, ends: Ends) -> bool:
        """Whether a task that ends so would not delay it."""
        if self.is_over_by(ends):
            return True
        need = share.need
        return (
            not self.share.need.is_quiet
            and not need.is_quiet
            and need.cpus <= self.cpus
            and need.memory_bytes <= self.memory_bytes
            and need.devices <= self.devices.get(need.device_kind, 0)
            and set(share.devices).isdisjoint(self.share.devices)
        )


@dataclass(eq=False, slots=True)
class Room:
    """A node as a decision fills it."""

    node: Node
    cpus: int
    memory_bytes: int
    free: dict[str, dict[int, Device]]  #: by kind and index; what is quarantined is not among them
    usable: Mapping[str, int]  #: how many devices of each kind it has, without what is quarantined
    running: int = 0  #: attempts
    is_quiet: bool = False  #: an attempt has it to itself
    builds: bool = False  #: a toolchain is built here, or is to be: that would disturb what wants it to itself
    releases: list[Release] = field(default_factory=list)
    order: int | None = None  #: which of their ends the releases are sorted by
    hold: Hold | None = None

    def count(self, kind: str) -> int:
        """How many devices of a kind are free; of all kinds where none is named."""
        return len(self.free.get(kind, ())) if kind else sum(map(len, self.free.values()))

    def fits(self, share: Share) -> bool:
        """Whether a task has room here now."""
        need = share.need
        if need.cpus > self.cpus or need.memory_bytes > self.memory_bytes:
            return False
        if self.running and (self.is_quiet or need.is_quiet):
            return False
        if self.builds and need.is_quiet:
            return False
        if not need.devices:
            return True
        free = self.free.get(need.device_kind, {})
        return len(free) >= need.devices and all(device in free for device in share.devices)

    def take(self, share: Share, ends: Ends) -> tuple[Device, ...]:
        """Give a task its share, until it ends; returns its devices."""
        devices = self._choose(share)
        if self.hold and not self.hold.is_over_by(ends):
            self.hold.cpus -= share.need.cpus
            self.hold.memory_bytes -= share.need.memory_bytes
            self.hold.devices = Counter(self.hold.devices) - Counter(device.kind for device in devices)
        self.occupy(share.need, devices, ends)
        return devices

    def _choose(self, share: Share) -> tuple[Device, ...]:
        """Those that another task waits for come last."""
        free = self.free.get(share.need.device_kind, {})
        if share.devices:
            return tuple(free[device] for device in share.devices)
        kept = self.hold.share.devices if self.hold else ()
        chosen = sorted(free.values(), key=lambda device: device.index in kept) if kept else free.values()
        return tuple(islice(chosen, share.need.devices))

    def occupy(self, need: Resources, devices: tuple[Device, ...], ends: Ends) -> None:
        """Have an attempt run here until it ends."""
        self.cpus -= need.cpus
        self.memory_bytes -= need.memory_bytes
        self.running += 1
        self.is_quiet = self.is_quiet or need.is_quiet
        kind = devices[0].kind if devices else ""
        free = self.free.get(kind, NOTHING)
        for device in devices:
            if free.pop(device.index, None) is None:  # gone, or quarantined meanwhile
                devices = tuple(other for other in devices if other != device)
        expected_s, latest_s = ends
        self.releases.append((expected_s, latest_s, need.cpus, need.memory_bytes, kind, len(devices), devices))
        self.order = None

    def opens_at_s(self, share: Share, by: int) -> float | None:
        """When a task has room here by the expected or latest ends; None: not even when all that runs has ended."""
        if self.fits(share):
            return 0.0
        need, these, kind = share.need, share.devices, share.need.device_kind
        running = self.running if self.is_quiet or need.is_quiet else 0  # that have to end
        cpus, memory_bytes = need.cpus - self.cpus, need.memory_bytes - self.memory_bytes  # that are missing
        free = self.free.get(kind, NOTHING)
        devices = need.devices - (sum(device in free for device in these) if these else len(free))
        if self.order != by:
            self.releases.sort(key=itemgetter(by))
            self.order = by
        for expected_s, latest_s, more_cpus, more_memory_bytes, its_kind, count, released in self.releases:
            cpus -= more_cpus
            memory_bytes -= more_memory_bytes
            running -= 1
            if its_kind == kind:
                devices -= sum(found.index in these for found in released) if these else count
            if devices <= 0 and cpus <= 0 and memory_bytes <= 0 and running <= 0:
                return latest_s if by == LATEST else expected_s
        return None

    def keep(self, share: Share, at_s: float, by: int) -> None:
        """Keep it for a task from then on."""
        cpus, memory_bytes = self.cpus - share.need.cpus, self.memory_bytes - share.need.memory_bytes
        devices = defaultdict(int, {kind: len(free) for kind, free in self.free.items()})
        devices[share.need.device_kind] -= share.need.devices
        for expected_s, latest_s, more_cpus, more_memory_bytes, kind, count, _ in self.releases:
            if (latest_s if by == LATEST else expected_s) <= at_s:
                cpus += more_cpus
                memory_bytes += more_memory_bytes
                devices[kind] += count
        self.hold = Hold(at_s, by, share, cpus, memory_bytes, devices)


def ends_of(elapsed_s: float, expected_s: float | None, timeout_s: float) -> Ends:
    """When an attempt ends that has run for so long; where nothing was learned of its like, by its timeout.

    What took longer than expected is expected to take twice as long, again and again.
    """
    expected = expected_s or timeout_s
    while expected <= elapsed_s < timeout_s:
        expected *= 2
    if elapsed_s < expected <= timeout_s:
        return expected - elapsed_s, timeout_s - elapsed_s
    latest_s = max(timeout_s - elapsed_s, 0.0)
    return latest_s, latest_s


def rooms_of(snapshot: Snapshot, nodes: Sequence[Node], now: datetime) -> dict[str, Room]:
    """What the running attempts leave of each node."""
    quarantined: dict[str, list[tuple[str, int]]] = {}
    for name, kind, index in snapshot.quarantined:
        quarantined.setdefault(name, []).append((kind, index))
    rooms = {}
    for node in nodes:
        free: dict[str, dict[int, Device]] = {}
        for device in node.devices:
            free.setdefault(device.kind, {})[device.index] = device
        for kind, index in quarantined.get(node.id, ()):
            free.get(kind, {}).pop(index, None)
        usable = {kind: len(devices) for kind, devices in free.items()}
        rooms[node.id] = Room(node, node.cpus, node.memory_bytes, free, usable)
    for running in snapshot.running:
        elapsed_s = (now - running.started_at).total_seconds()
        ends = ends_of(elapsed_s, running.expected_s, running.timeout_s)
        for place in running.places:
            if place.node in rooms:
                rooms[place.node].occupy(running.resources, place.devices, ends)
    return rooms
