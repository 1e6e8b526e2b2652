"""Foreign processes on the GPUs of an attempt while it runs: those that hold memory or compute and aren't its own.

Its own processes are all below the supervisor that runs its commands: ranks, workers of a server, daemons, in whatever
session. What makes a process use a GPU is the same here as before and after an attempt (`GpuProcess.is_using_gpu`).

Drivers know processes by their pids in the host's namespace (amdgpu: `lead_thread->pid` of kfd_process.c; NVIDIA until
its driver knows namespaces, https://github.com/NVIDIA/nvidia-docker/issues/1483; from then on it reports no process
outside of the container, `os_find_ns_pid` of its open modules). So in a container a reported pid is trusted if the
process with that pid in the container has the driver open. If there is none, memory decides: a foreign process is there
when more is in use than before, beyond what the attempt's own processes hold. Where that is unknown too (NVIDIA's older
drivers), no process is called foreign.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from jobs.task import Attempt, Device
from workers.machine import fitness, gpus, open_device_files
from workers.machine.gpu_listing import Gpu
from workers.machine.gpu_processes import (
    ROOT,
    GpuProcess,
    KfdNode,
    drm_vram_bytes,
    kfd_nodes,
    kfd_nodes_by_serial,
    kfd_processes,
)
from workers.processes import attempt_processes, proc
from workers.processes.client import fork_server

INVISIBLE_PROCESS = "a process that is not visible in this container"


@dataclass(frozen=True)
class ForeignProcess:
    """A foreign process on a GPU at one moment."""

    who: str  #: its description: the process may be gone when this is read
    pid: int | None = None
    held_bytes: int | None = None


@dataclass(frozen=True)
class ForeignUsage:
    """A foreign process, and for how long it was seen on a GPU."""

    process: ForeignProcess  #: when it held the most
    seen_s: float

    def __str__(self) -> str:
        memory = f" with {fitness.format_size(self.process.held_bytes)}" if self.process.held_bytes else ""
        return f"{self.process.who}{memory} for {self.seen_s:.0f} s"

    def as_context(self) -> dict[str, Any]:
        """Return what is known of it, for a measurement's context."""
        facts = {"who": self.process.who, "pid": self.process.pid, "held_bytes": self.process.held_bytes}
        return {name: value for name, value in facts.items() if value is not None} | {"seen_s": round(self.seen_s, 3)}


def foreign_usage(started_s: float, polls: Iterable[tuple[float, Sequence[ForeignProcess]]]) -> list[ForeignUsage]:
    """Sum up polls in their order, each with its time; a poll stands for the time since the one before."""
    by_process: dict[str, ForeignUsage] = {}
    for at_s, processes in polls:
        for process in processes:
            earlier = by_process.get(process.who, ForeignUsage(process, 0.0))
            largest = max(earlier.process, process, key=lambda seen: seen.held_bytes or 0)
            by_process[process.who] = ForeignUsage(largest, earlier.seen_s + at_s - started_s)
        started_s = at_s
    return list(by_process.values())


@dataclass
class UnattributedMemory:
    """The memory of a GPU that is in use and not held by the attempt's own processes, poll by poll."""

    own_bytes: deque[tuple[float, int]] = field(default_factory=deque)  #: what the attempt held, with the times
    least_bytes: int | None = None
    has_grown: bool = False  #: at the latest poll

    def record(self, at_s: float, used_bytes: int, own_bytes: int) -> int:
        """Record a poll; returns by how much the memory has grown, 0 if by little, or if for one poll only.

        The memory of a process that has ended stays in use for a while, and counts as its own until then.
        """
        self.own_bytes.append((at_s, own_bytes))
        while self.own_bytes[0][0] < at_s - fitness.AFTER_S:
            self.own_bytes.popleft()
        unattributed = max(0, used_bytes - max(held_bytes for _, held_bytes in self.own_bytes))
        self.least_bytes = unattributed if self.least_bytes is None else min(self.least_bytes, unattributed)
        growth = unattributed - self.least_bytes
        had_grown, self.has_grown = self.has_grown, growth > fitness.IN_USE_BYTES
        return growth if had_grown and self.has_grown else 0


class ForeignProcessMonitor:
    """Polls the GPUs of one attempt for foreign processes."""

    def __init__(self, attempt: Attempt, root: Path = ROOT, has_host_pids: bool | None = None) -> None:
        """Monitor the GPUs of `attempt`, by the sysfs and procfs that are mounted below `root`.

        `has_host_pids` is whether drivers know processes by the pids that they have here; by default the kernel is
        asked.
        """
        self._attempt, self._root = attempt, root
        self._has_host_pids = proc.is_in_host_pid_namespace() if has_host_pids is None else has_host_pids
        amd = [device for device in attempt.devices if gpus.vendor_of(device.kind) == "amd"]
        self._nodes = match_kfd_nodes(amd, kfd_nodes(root))
        self._unattributed: dict[Device, UnattributedMemory] = {}
        self._descriptions: dict[int, str] = {}

    def poll(
        self, at_s: float, supervisor: int | None, polled: Mapping[Device, Gpu]
    ) -> dict[Device, tuple[ForeignProcess, ...]]:
        """Return the foreign processes by GPU, as the kernel reports them, or else as a tool does in `polled`.

        `supervisor` is the pid of the attempt's, if it is known.
        """
        root = supervisor or fork_server.pid
        is_own = cache(partial(self._is_own, root=root))  # for this poll: one process may be on all GPUs
        return {
            device: self._on_gpu(device, gpu, gpu.processes, at_s, root, is_own)
            for device, gpu in {**polled, **self._poll_kernel()}.items()
            if gpu.processes is not None
        }

    def _poll_kernel(self) -> dict[Device, Gpu]:
        by_gpu = kfd_processes([node.gpu_id for node in self._nodes.values()], self._root) or {}
        return {
            device: Gpu(
                device.index, device.kind, processes=by_gpu[node.gpu_id], used_bytes=node.used_bytes(self._root)
            )
            for device, node in self._nodes.items()
            if node.gpu_id in by_gpu
        }

    def _on_gpu(
        self,
        device: Device,
        gpu: Gpu,
        processes: Sequence[GpuProcess],
        at_s: float,
        root: int | None,
        is_own: Callable[[int], bool],
    ) -> tuple[ForeignProcess, ...]:
        using = [process for process in processes if process.is_using_gpu]
        vendor = gpus.vendor_of(device.kind) or ""
        visible = [
            process
            for process in using
            if self._has_host_pids or open_device_files.has_gpu_open(process.pid, vendor, self._root)
        ]
        foreign = [process for process in visible if not is_own(process.pid)]
        if foreign or self._has_host_pids:
            return tuple(map(self._describe, foreign))
        own_bytes = self._own_bytes(device, using, visible, root)
        # The sum over processes where the driver reports all of them: what has ended leaves that at once.
        used_bytes = _sum_held(using) if len(visible) < len(using) else gpu.used_bytes
        if own_bytes is None or used_bytes is None:
            return ()
        growth = self._unattributed.setdefault(device, UnattributedMemory()).record(at_s, used_bytes, own_bytes)
        return (ForeignProcess(INVISIBLE_PROCESS, held_bytes=growth),) if growth else ()

    def _own_bytes(
        self, device: Device, using: Sequence[GpuProcess], visible: Sequence[GpuProcess], root: int | None
    ) -> int | None:
        """Return what the attempt's processes hold of a GPU that no visible foreign process uses; None: unknown."""
        if len(visible) == len(using):
            return _sum_held(using)
        if device in self._nodes and root:
            return drm_vram_bytes(proc.tree(root), self._nodes[device].render_minor, self._root)
        return None

    def _is_own(self, pid: int, root: int | None) -> bool:
        """Whether a process is the attempt's; also True for one that has ended, which holds nothing for long."""
        if not proc.is_alive(pid):
            return True
        if root and proc.is_in_tree(pid, root):
            return True
        return attempt_processes.attempt_of(pid) == self._attempt.id

    def _describe(self, process: GpuProcess) -> ForeignProcess:
        if process.pid not in self._descriptions:
            self._descriptions[process.pid] = attempt_processes.describe_process(process.pid, process.name)
        return ForeignProcess(self._descriptions[process.pid], process.pid, process.held_bytes)


def match_kfd_nodes(devices: Sequence[Device], nodes: Sequence[KfdNode]) -> dict[Device, KfdNode]:
    """Find the kernel's nodes of AMD's GPUs: by serial numbers, or by HIP's indices where these are unknown."""
    by_serial, matches = kfd_nodes_by_serial(nodes), {}
    for device in devices:
        if by_serial and device.serial:
            node = by_serial.get(device.serial)
        else:
            node = nodes[device.index] if device.index < len(nodes) else None
        if node:
            matches[device] = node
    return matches


def _sum_held(processes: Iterable[GpuProcess]) -> int | None:
    sizes = [process.held_bytes for process in processes]
    return None if None in sizes else sum(filter(None, sizes))
