"""Looks at a machine while something is measured on it: what comes and goes between its beginning and its end.

A thread beside the measured processes. It takes at most MOST_COST of one processor, tools of drivers included, and
waits longer between its looks where one costs more. Measured: a look without GPUs takes 1 ms of processor time where
what is measured has one thread, 2 ms where it has 20, 10 ms where it has 200. Of clocks only those of GPUs are read:
asking for a processor's interrupts it. Tools are asked as often as the rest of that cost allows, so that what the
kernel tells, who is on AMD's GPUs too, is seen in each look, however slow they are. Who is on 8 of those takes 2 ms
where the only processes are 8 of the attempt, 14 ms beside 192 others that have them open, 22 ms where those hold some.
"""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from jobs.task import Attempt, Device
from workers import gpus, process_trees
from workers.conditions import Sample, busy_s, held_back_s
from workers.gpu_listing import Gpu
from workers.machine_settings import Machine
from workers.strangers import Strangers

EVERY_S = 1.0  #: at most so often
MOST_COST = 0.05  #: of one processor


class Sampling:
    """Samples of what happens between entering and leaving."""

    def __init__(self, attempt: Attempt, root: Path = Path("/"), every_s: float | None = None) -> None:
        """Of an attempt's GPUs and processes."""
        self.samples: list[Sample] = []
        self.cost_s = 0.0  #: processor time of this thread, and how long tools took
        self._attempt, self._root, self._every_s = attempt, root, EVERY_S if every_s is None else every_s
        self._vendors = {device.kind: vendor for device in attempt.devices if (vendor := gpus.vendor_of(device.kind))}
        self._guard: int | None = None
        self._strangers = Strangers(attempt) if self._vendors else None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="sampling", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _look_on(self) -> None:
        pause_s, ask_at_s = self._every_s, 0.0
        while not self._is_over.wait(pause_s):
            began_s = time.thread_time()
            found, took_s = self._asked() if time.monotonic() >= ask_at_s else ({}, 0.0)
            self.samples.append(self._sample(found))
            own_s = time.thread_time() - began_s
            self.cost_s += own_s + took_s
            pause_s = max(self._every_s, own_s / (MOST_COST / 2))
            if took_s:
                ask_at_s = time.monotonic() + took_s / (MOST_COST - own_s / pause_s)

    def _sample(self, found: Mapping[Device, Gpu]) -> Sample:
        machine, at_s = Machine(root=self._root), time.monotonic()
        self._guard = self._guard or process_trees.guard_of(self._attempt.id)
        return Sample(
            at_s=at_s,
            busy_s=busy_s("".join(machine.read("/proc/stat")), os.sched_getaffinity(0)),
            own_cpu_s=process_trees.cpu_s(self._guard) if self._guard else None,
            held_back_s=held_back_s("".join(machine.read("/sys/fs/cgroup/cpu.stat"))),
            readings={device: gpu.readings for device, gpu in found.items()},
            strangers=self._strangers.look(at_s, self._guard, found) if self._strangers else {},
        )

    def _asked(self) -> tuple[dict[Device, Gpu], float]:
        """The attempt's GPUs as tools tell, and how long that took; a vendor whose tool does not answer is not asked
        again."""
        began_s = time.monotonic()
        told = {vendor: gpus.now(vendor) for vendor in set(self._vendors.values())}
        self._vendors = {kind: vendor for kind, vendor in self._vendors.items() if told[vendor]}
        found = {
            device: gpu
            for device in self._attempt.devices
            if device.kind in self._vendors and (gpu := told[self._vendors[device.kind]].get(device.index))
        }
        return found, time.monotonic() - began_s if told else 0.0
