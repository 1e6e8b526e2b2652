"""Who else is on the GPUs of an attempt while it runs: what is held or computed there by none of its own processes.

Its own are all below the guard that runs its commands: ranks, workers of a server, daemons, whatever session they are
in. What makes a process a user is the same here as before and after an attempt (`GpuUser.is_on_it`).

To drivers processes have the numbers that the machine gives them (amdgpu: `lead_thread->pid` of kfd_process.c; NVIDIA
until its driver knows namespaces, https://github.com/NVIDIA/nvidia-docker/issues/1483; after that it tells of nobody
outside, `os_find_ns_pid` of its open modules). So in a container a number that is told is believed where a process
that has it here has the driver open, and where none does, memory tells: more of it is in use than before, beyond what
the attempt's own processes hold. Where that is not known either (NVIDIA's older drivers), nobody is called a stranger.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from jobs.task import Attempt, Device
from workers import device_users, fitness, gpus, process_trees
from workers.gpu_listing import Gpu
from workers.gpu_users import GpuUser, KfdNode, by_serial, drm_bytes, kfd_nodes, kfd_users
from workers.processes import keeper

NOT_SEEN = "somebody who is not seen from here"


@dataclass(frozen=True)
class Stranger:
    """Somebody else's process on a GPU, at one moment."""

    who: str  #: in words: it may be gone when they are read
    pid: int | None = None
    held_bytes: int | None = None


@dataclass(frozen=True)
class Visit:
    """A stranger, for as long as it was seen."""

    stranger: Stranger  #: with the most that it held
    seen_s: float

    def __str__(self) -> str:
        held = f" with {fitness.size(self.stranger.held_bytes)}" if self.stranger.held_bytes else ""
        return f"{self.stranger.who}{held} for {self.seen_s:.0f} s of it"

    def told(self) -> dict[str, Any]:
        """All of it, for a measurement's context."""
        found = {"who": self.stranger.who, "pid": self.stranger.pid, "held_bytes": self.stranger.held_bytes}
        return {name: value for name, value in found.items() if value is not None} | {"seen_s": round(self.seen_s, 3)}


def visits(begun_s: float, looks: Iterable[tuple[float, Sequence[Stranger]]]) -> list[Visit]:
    """Who was seen, by looks in their order, each of which stands for the time since the one before."""
    found: dict[str, Visit] = {}
    for at_s, strangers in looks:
        for one in strangers:
            earlier = found.get(one.who, Visit(one, 0.0))
            most = max(earlier.stranger, one, key=lambda each: each.held_bytes or 0)
            found[one.who] = Visit(most, earlier.seen_s + at_s - begun_s)
        begun_s = at_s
    return list(found.values())


@dataclass
class Rest:
    """What of a GPU's memory is in use and not an attempt's own, look by look."""

    own: deque[tuple[float, int]] = field(default_factory=deque)  #: what it held, and when
    least_bytes: int | None = None
    is_more: bool = False  #: at the latest look

    def grown(self, at_s: float, used_bytes: int, own_bytes: int) -> int:
        """By how much it is more than it has been; 0 where that is little, or was not so in the look before too.

        The memory of a process that has ended is in use for a while longer, and is its own until then.
        """
        self.own.append((at_s, own_bytes))
        while self.own[0][0] < at_s - fitness.AFTER_S:
            self.own.popleft()
        rest = max(0, used_bytes - max(held for _, held in self.own))
        self.least_bytes = rest if self.least_bytes is None else min(self.least_bytes, rest)
        was_more, self.is_more = self.is_more, rest - self.least_bytes > fitness.IN_USE_BYTES
        return rest - self.least_bytes if was_more and self.is_more else 0


class Strangers:
    """Looks at who is on the GPUs of one attempt."""

    def __init__(self, attempt: Attempt, sys: Path | None = None) -> None:
        """`sys` is where the kernel's books are, if not where they always are."""
        self._attempt, self._sys = attempt, sys
        self._has_machines_numbers = device_users.has_machines_numbers()
        self._nodes = nodes_of([one for one in attempt.devices if gpus.vendor_of(one.kind) == "amd"], kfd_nodes(sys))
        self._rests: dict[Device, Rest] = {}
        self._who: dict[int, str] = {}

    def look(self, at_s: float, guard: int | None, told: Mapping[Device, Gpu]) -> dict[Device, tuple[Stranger, ...]]:
        """The strangers on each GPU of which the kernel tells, or else a tool has `told`."""
        found = {**told, **self._by_kernel()}
        top = guard or keeper.pid
        is_own = cache(partial(self._is_own, top=top))  # for this look: one process may be on all GPUs
        return {
            device: self._on(device, gpu, at_s, top, is_own) for device, gpu in found.items() if gpu.users is not None
        }

    def _by_kernel(self) -> dict[Device, Gpu]:
        users = kfd_users([node.gpu_id for node in self._nodes.values()], self._sys) or {}
        return {
            device: Gpu(device.index, device.kind, users=users[node.gpu_id], used_bytes=node.used_bytes(self._sys))
            for device, node in self._nodes.items()
            if node.gpu_id in users
        }

    def _on(
        self, device: Device, gpu: Gpu, at_s: float, top: int | None, is_own: Callable[[int], bool]
    ) -> tuple[Stranger, ...]:
        users = [one for one in gpu.users or () if one.is_on_it]
        vendor = gpus.vendor_of(device.kind) or ""
        known = [one for one in users if self._has_machines_numbers or device_users.has_open(one.pid, vendor)]
        found = [one for one in known if not is_own(one.pid)]
        if found or self._has_machines_numbers:
            return tuple(self._named(one) for one in found)
        own_bytes = self._own_bytes(device, users, known, top)
        # all that the driver tells of where it tells of all; what has ended leaves that at once
        in_use = _held(users) if len(known) < len(users) else gpu.used_bytes
        if own_bytes is None or in_use is None:
            return ()
        grown = self._rests.setdefault(device, Rest()).grown(at_s, in_use, own_bytes)
        return (Stranger(NOT_SEEN, held_bytes=grown),) if grown else ()

    def _own_bytes(
        self, device: Device, users: Sequence[GpuUser], known: Sequence[GpuUser], top: int | None
    ) -> int | None:
        """What the attempt's processes hold of a GPU; None: not told."""
        if len(known) == len(users):
            return _held(users)  # none of them is a stranger
        if device in self._nodes and top:
            return drm_bytes(process_trees.tree(top), self._nodes[device].render_minor)
        return None

    def _is_own(self, pid: int, top: int | None) -> bool:
        """Whether a process is no stranger; one that has ended holds nothing for long."""
        if not device_users.is_alive(pid):
            return True
        if top and process_trees.is_in_tree(pid, top):
            return True
        return device_users.attempt_of(pid) == self._attempt.id

    def _named(self, user: GpuUser) -> Stranger:
        if user.pid not in self._who:
            self._who[user.pid] = device_users.told(user.pid, user.name)
        return Stranger(self._who[user.pid], user.pid, user.held_bytes)


def nodes_of(devices: Sequence[Device], nodes: Sequence[KfdNode]) -> dict[Device, KfdNode]:
    """AMD's GPUs with what the kernel calls them: by serial numbers, or HIP's indices where those are not told."""
    known, found = by_serial(nodes), {}
    for device in devices:
        if known and device.serial:
            node = known.get(device.serial)
        else:
            node = nodes[device.index] if device.index < len(nodes) else None
        if node:
            found[device] = node
    return found


def _held(users: Iterable[GpuUser]) -> int | None:
    held = [one.held_bytes for one in users]
    return None if None in held else sum(filter(None, held))
