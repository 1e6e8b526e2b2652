"""What a machine is like around a measurement: before it and after it, and whether something else disturbed it.

What the kernel and the drivers count is compared, so that nothing has to be asked while the measurement goes on: time
that the processors computed for others, time that a container was held back, how often processors and for how long GPUs
were slowed by heat. That a GPU keeps to its power cap is told, and is no disturbance: most do under a full load.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.targets import TARGETS
from jobs.task import Attempt, Device
from workers import fitness, gpus
from workers.devices import FOREIGN_VARIABLE, foreign_cpu_percent, versions
from workers.gpu_listing import COUNTERS, Listing
from workers.machine_settings import Machine, checks

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)  #: columns of /proc/stat: idle, waiting for a disk
COUNTED = 8  #: columns; those after it are in the first ones already
MOST_SLOWED = 0.01  #: of a measurement's time, by heat
CAPS = ("power_cap_w",)  #: readings that nobody is to change meanwhile


@dataclass(frozen=True)
class Look:
    """What was found at one moment; counters count since the machine or the driver was started."""

    at_s: float
    cpus: int  #: that this process may use
    busy_s: float  #: of those, all together; also what a hypervisor took of them
    load: tuple[float, ...] = ()  #: of the last 1, 5 and 15 minutes
    cpu_mhz: float | None = None  #: at this moment, on average
    cpu_throttles: int | None = None  #: times that heat slowed a processor; None: not told
    held_back_s: float = 0.0  #: by the limit of the container
    listings: tuple[Listing, ...] = ()
    readings: Mapping[Device, Mapping[str, float]] = field(default_factory=dict)


def look(devices: Sequence[Device], root: Path = Path("/")) -> Look:
    """Take a look at the machine and at some of its GPUs."""
    machine = Machine(root=root)
    allowed = os.sched_getaffinity(0)
    vendors = sorted({vendor for device in devices if (vendor := gpus.vendor_of(device.kind))})
    listings = tuple(gpus.with_readings(found) for vendor in vendors if (found := gpus.list_gpus(vendor)))
    readings = {(one.vendor, gpu.index): gpu.readings for one in listings for gpu in one.gpus}
    return Look(
        at_s=time.monotonic(),
        cpus=len(allowed),
        busy_s=busy_s("".join(machine.read("/proc/stat")), allowed),
        load=tuple(float(word) for word in "".join(machine.read("/proc/loadavg")).split()[:3]),
        cpu_mhz=mean_mhz(machine),
        cpu_throttles=cpu_throttles(machine),
        held_back_s=held_back_s("".join(machine.read("/sys/fs/cgroup/cpu.stat"))),
        listings=listings,
        readings={device: readings.get((gpus.vendor_of(device.kind) or "", device.index), {}) for device in devices},
    )


def busy_s(stat: str, allowed: "frozenset[int] | set[int]") -> float:
    """How long some processors have been busy, all together, as /proc/stat tells."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if re.fullmatch(r"cpu\d+", name) and int(name[3:]) in allowed:
            ticks += sum(int(value) for place, value in enumerate(columns[:COUNTED]) if place not in IDLE)
    return ticks / TICKS_PER_S


def mean_mhz(machine: Machine) -> float | None:
    """The processors' clock; None where nobody tells it."""
    khz = [float(text) for text in machine.read("/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq")]
    told = [one / 1000 for one in khz] or [
        float(found) for found in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", "".join(machine.read("/proc/cpuinfo")), re.M)
    ]
    return round(sum(told) / len(told), 1) if told else None


def cpu_throttles(machine: Machine) -> int | None:
    """How often heat slowed a core or a whole processor since the machine was started."""
    told = machine.read("/sys/devices/system/cpu/cpu*/thermal_throttle/*_throttle_count")
    return sum(map(int, told)) if told else None


def held_back_s(cpu_stat: str) -> float:
    """How long a container's processes had to wait because its share of the processors was used up."""
    found = re.search(r"^throttled_usec (\d+)$", cpu_stat, re.M)
    return int(found[1]) / 1e6 if found else 0.0


def most_foreign_percent(devices: Sequence[Device], given: str | None) -> float:
    """How much of the processors others may use during a measurement: as the node has it, else as the target does."""
    by_target = min((TARGETS[device.kind].max_foreign_cpu_percent for device in devices), default=100.0)
    by_node = foreign_cpu_percent(given)
    return by_target if by_node is None else by_node


@dataclass(frozen=True)
class Between:
    """What two looks and a measurement's own processor time say of the time between them."""

    before: Look
    after: Look
    own_cpu_s: float

    @property
    def wall_s(self) -> float:
        """How long it was."""
        return self.after.at_s - self.before.at_s

    @property
    def foreign_cpu_s(self) -> float:
        """How long the processors computed for others."""
        return max(0.0, self.after.busy_s - self.before.busy_s - self.own_cpu_s)

    def disturbances(self, most_foreign: float) -> Iterator[str]:
        """What disturbed the measurement; `most_foreign` percent of the processors may compute for others."""
        allowed = f"meanwhile, at most {most_foreign:g}% is allowed ({FOREIGN_VARIABLE})"
        foreign, held_back = map(self._percent, (self.foreign_cpu_s, self.after.held_back_s - self.before.held_back_s))
        if foreign > most_foreign:
            yield f"others used {foreign:.0f}% of {self.after.cpus} processors {allowed}"
        if held_back > most_foreign:
            yield f"its container's limit held {held_back:.0f}% of {self.after.cpus} processors back {allowed}"
        if throttles := (self.after.cpu_throttles or 0) - (self.before.cpu_throttles or 0):
            yield f"heat slowed the processors {throttles} times"
        for device in self.after.readings:
            yield from self._of_gpu(device)

    def _percent(self, cpu_s: float) -> float:
        return min(100.0, 100 * cpu_s / (self.after.cpus * max(self.wall_s, 1e-9)))

    def _of_gpu(self, device: Device) -> Iterator[str]:
        name = f"{device.kind}:{device.index}"
        before, after = self.before.readings.get(device, {}), self.after.readings[device]
        slowed = slowed_share(before, after, self.wall_s, "heat")
        if slowed is not None and slowed > MOST_SLOWED:
            yield f"{name} was slowed by heat for {slowed:.0%} of the time"
        for reading in CAPS:
            was, became = before.get(reading), after.get(reading)
            if was and became and was != became:
                yield f"{name}: its {reading} changed from {was:g} to {became:g}"
        for listing in self.after.listings:
            if gpus.vendor_of(device.kind) == listing.vendor:
                yield from (
                    f"{name}: {trouble.reason}"
                    for trouble in fitness.troubles([device], listing)
                    if trouble.device and not trouble.passes
                )

    def told(self, node: str) -> dict[str, Any]:
        """All of it, for the context of what was measured."""
        machine = Machine(self.after.listings)
        found = checks(machine)
        return {
            "node": node,
            "devices": [self._told_of(device) for device in self.after.readings],
            "drivers": versions(self.after.listings),
            "settings": {check.name: check.found for check in found},
            "unmet": [check.name for check in found if not check.is_ok],
            "cpus": self.after.cpus,
            "wall_s": round(self.wall_s, 3),
            "own_cpu_s": round(self.own_cpu_s, 3),
            "foreign_cpu_s": round(self.foreign_cpu_s, 3),
            "load": [list(self.before.load), list(self.after.load)],
            "cpu_mhz": [self.before.cpu_mhz, self.after.cpu_mhz],
            "cpu_throttles": _difference(self.before.cpu_throttles, self.after.cpu_throttles),
        }

    def _told_of(self, device: Device) -> dict[str, Any]:
        before, after = self.before.readings.get(device, {}), self.after.readings[device]
        slowed = {f"slowed_by_{why}": slowed_share(before, after, self.wall_s, why) for why in ("heat", "power")}
        return {
            "kind": device.kind,
            "index": device.index,
            "serial": device.serial,
            "before": {name: value for name, value in before.items() if not name.endswith(COUNTERS)},
            "after": {name: value for name, value in after.items() if not name.endswith(COUNTERS)},
            **{name: share for name, share in slowed.items() if share is not None},
        }


def slowed_share(before: Mapping[str, float], after: Mapping[str, float], wall_s: float, why: str) -> float | None:
    """The share of a time in which a GPU was slowed by `heat`, or held by its cap on `power`; None: not told.

    NVIDIA's drivers count microseconds, AMD's firmware counts its own rounds, those that were slowed and all.
    """
    if f"{why}_us" in before and f"{why}_us" in after:
        slowed_us = after[f"{why}_us"] - before[f"{why}_us"]
        return round(slowed_us / 1e6 / max(wall_s, 1e-9), 4)
    if all(name in found for name in (f"{why}_ticks", "ticks") for found in (before, after)):
        ticks = after["ticks"] - before["ticks"]
        return round((after[f"{why}_ticks"] - before[f"{why}_ticks"]) / ticks, 4) if ticks > 0 else None
    return None


def disturbed(between: Between, attempt: Attempt, given: str | None = None) -> str:
    """What disturbed an attempt's measurement, in one line; empty when nothing did."""
    given = os.environ.get(FOREIGN_VARIABLE) if given is None else given
    return "; ".join(between.disturbances(most_foreign_percent(attempt.devices, given)))


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
