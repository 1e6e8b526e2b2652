"""Samples a host while something is measured on it: what comes and goes between the beginning and the end.

A thread beside the measured processes. It takes at most MAX_CPU_SHARE of one CPU, drivers' tools included, and waits
longer between samples that cost more. Measured: a sample without GPUs takes 1 ms of CPU time if what is measured has
one thread, 2 ms if it has 20, 10 ms if it has 200. Only GPUs' clocks are read: reading a CPU's interrupts it. Tools run
as often as the rest of that share allows, so that what the kernel reports, processes on AMD's GPUs too, is in every
sample, however slow they are. The processes on 8 of those take 2 ms if there are only 8 of the attempt, 14 ms beside
192 others that have them open, 22 ms if those hold memory.
"""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from jobs.task import Attempt, Device
from workers.machine import gpus
from workers.machine.gpu_listing import Gpu
from workers.machine.machine_settings import Machine
from workers.machine.rapl import read_energy_counters
from workers.measurement.foreign_processes import ForeignProcessMonitor
from workers.measurement.host_samples import HostSample, busy_s, cgroup_throttled_s
from workers.processes import proc
from workers.processes.client import fork_server

INTERVAL_S = 1.0  #: between samples, at least
MAX_CPU_SHARE = 0.05  #: of one CPU


class Sampler:
    """Takes samples of the host in a thread, from entering to leaving the context."""

    def __init__(
        self,
        attempt: Attempt,
        root: Path = Path("/"),
        interval_s: float = INTERVAL_S,
        max_cpu_share: float = MAX_CPU_SHARE,
        monitor: ForeignProcessMonitor | None = None,
    ) -> None:
        """Sample the GPUs and the processes of an attempt; foreign ones on GPUs by `monitor`, or one of its own."""
        self.samples: list[HostSample] = []
        self.cost_s = 0.0  #: CPU time of this thread, and how long tools took
        self._attempt, self._root = attempt, root
        self._interval_s, self._max_cpu_share = interval_s, max_cpu_share
        self._vendors = {device.kind: vendor for device in attempt.devices if (vendor := gpus.vendor_of(device.kind))}
        self._supervisor: int | None = None
        self._monitor = monitor or (ForeignProcessMonitor(attempt) if self._vendors else None)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s, next_tools_at_s = self._interval_s, 0.0
        while not self._is_over.wait(pause_s):
            started_s = time.thread_time()
            polled, tools_s = self._poll_tools() if time.monotonic() >= next_tools_at_s else ({}, 0.0)
            self.samples.append(self._sample(polled))
            thread_s = time.thread_time() - started_s
            self.cost_s += thread_s + tools_s
            pause_s = max(self._interval_s, thread_s / (self._max_cpu_share / 2))
            if tools_s:
                next_tools_at_s = time.monotonic() + tools_s / (self._max_cpu_share - thread_s / pause_s)

    def _sample(self, polled: Mapping[Device, Gpu]) -> HostSample:
        machine, at_s = Machine(root=self._root), time.monotonic()
        self._supervisor = self._supervisor or fork_server.supervisor_of(self._attempt.id)
        return HostSample(
            at_s=at_s,
            busy_s=busy_s("".join(machine.read("/proc/stat")), os.sched_getaffinity(0)),
            own_cpu_s=proc.tree_cpu_s(self._supervisor) if self._supervisor else None,
            cgroup_throttled_s=cgroup_throttled_s("".join(machine.read("/sys/fs/cgroup/cpu.stat"))),
            readings={device: gpu.readings for device, gpu in polled.items()},
            cpu_energy=read_energy_counters(machine),
            foreign_processes=self._monitor.poll(at_s, self._supervisor, polled) if self._monitor else {},
        )

    def _poll_tools(self) -> tuple[dict[Device, Gpu], float]:
        """Return the attempt's GPUs as tools report them, and how long that took.

        A vendor whose tool does not answer is not polled again.
        """
        started_s = time.monotonic()
        by_vendor = {vendor: gpus.poll_gpus(vendor) for vendor in set(self._vendors.values())}
        self._vendors = {kind: vendor for kind, vendor in self._vendors.items() if by_vendor[vendor]}
        polled = {
            device: gpu
            for device in self._attempt.devices
            if device.kind in self._vendors and (gpu := by_vendor[self._vendors[device.kind]].get(device.index))
        }
        return polled, time.monotonic() - started_s if by_vendor else 0.0
