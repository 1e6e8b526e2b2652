"""What else disturbed a measurement, by snapshots before and after it and by samples of the time between.

The counters of the kernel and of the drivers are compared: CPU time of other processes, CPU throttling by the limit of
the container, thermal throttling of CPUs and GPUs; over all of the time, and over sliding windows of WINDOW_S, since a
burst that is nothing in ten minutes is all of what one repetition saw. That a GPU keeps to its power cap is reported
and is no disturbance: most do under full load. Pure, but that `as_context` reads the machine's settings.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.targets import TARGETS
from jobs.task import Attempt, Device
from workers.machine import fitness, gpus
from workers.machine.devices import FOREIGN_VARIABLE, foreign_cpu_percent, versions
from workers.machine.gpu_listing import COUNTER_SUFFIXES
from workers.machine.machine_settings import Machine, checks
from workers.measurement.foreign_processes import ForeignUsage, foreign_usage
from workers.measurement.host_samples import HostSample, HostSnapshot

MAX_THERMAL_PERCENT = 1.0  #: of a measurement's time
FIXED_READINGS = ("power_cap_w",)  #: must not change during a measurement
WINDOW_S = 5.0  #: shorter windows say little: the kernel counts in hundredths of a second


def max_foreign_cpu_percent(devices: Sequence[Device], setting: str | None) -> float:
    """Return how much of the CPUs others may use during a measurement: as the node's setting says, else the target."""
    by_target = min((TARGETS[device.kind].max_foreign_cpu_percent for device in devices), default=100.0)
    by_node = foreign_cpu_percent(setting)
    return by_target if by_node is None else by_node


@dataclass(frozen=True)
class WindowShare:
    """A share of a window of time."""

    percent: float
    wall_s: float


def sliding_windows(
    samples: Sequence[HostSample], window_s: float = WINDOW_S
) -> Iterator[tuple[HostSample, HostSample]]:
    """Yield for every sample the shortest window of at least `window_s` that ends with it."""
    begin = 0
    for end, sample in enumerate(samples):
        while begin + 1 < end and sample.at_s - samples[begin + 1].at_s >= window_s:
            begin += 1
        if sample.at_s - samples[begin].at_s >= window_s:
            yield samples[begin], sample


@dataclass(frozen=True)
class MeasurementInterval:
    """The time of a measurement: snapshots at its ends, samples between, and the CPU time that it took itself."""

    before: HostSnapshot
    after: HostSnapshot
    own_cpu_s: float
    samples: Sequence[HostSample] = ()
    window_s: float = WINDOW_S  #: the length of sliding windows

    @property
    def wall_s(self) -> float:
        """How long the measurement took."""
        return self.after.at_s - self.before.at_s

    @property
    def foreign_cpu_s(self) -> float:
        """The CPU time of other processes."""
        return max(0.0, self.after.busy_s - self.before.busy_s - self.own_cpu_s)

    def disturbances(self, max_foreign: float) -> Iterator[str]:
        """Yield what disturbed the measurement; other processes may use `max_foreign` percent of the CPUs."""
        foreign = WindowShare(self._cpu_percent(self.foreign_cpu_s, self.wall_s), self.wall_s)
        yield from self._cpu_disturbance("other processes used {}", foreign, self.peak_foreign, max_foreign)
        throttled_s = self.after.cgroup_throttled_s - self.before.cgroup_throttled_s
        throttled = WindowShare(self._cpu_percent(throttled_s, self.wall_s), self.wall_s)
        peak_throttled = self._peak(self.samples, lambda sample: sample.cgroup_throttled_s)
        yield from self._cpu_disturbance("the container's limit throttled {}", throttled, peak_throttled, max_foreign)
        if throttles := (self.after.cpu_thermal_throttles or 0) - (self.before.cpu_thermal_throttles or 0):
            yield f"thermal throttling of the CPUs, {throttles} times"
        for device in self.after.readings:
            yield from self._gpu_disturbances(device)

    def _cpu_disturbance(self, message: str, whole: WindowShare, peak: WindowShare, limit: float) -> Iterator[str]:
        """Report the whole time if that is above the limit, else the worst window if that is."""
        if max(whole.percent, peak.percent) > limit:
            share, duration = (whole, "") if whole.percent > limit else (peak, f" for {peak.wall_s:.0f} s")
            disturbance = message.format(f"{share.percent:.0f}% of {self.after.cpus} CPUs")
            yield f"{disturbance}{duration}, more than {limit:g}% ({FOREIGN_VARIABLE})"

    @property
    def peak_foreign(self) -> WindowShare:
        """The window in which other processes used most CPU time."""
        known = [sample for sample in self.samples if sample.own_cpu_s is not None]
        return self._peak(known, lambda sample: sample.busy_s - (sample.own_cpu_s or 0.0))

    def _peak(self, samples: Sequence[HostSample], cpu_s: Callable[[HostSample], float]) -> WindowShare:
        shares = [
            WindowShare(self._cpu_percent(cpu_s(end) - cpu_s(begin), wall_s := end.at_s - begin.at_s), wall_s)
            for begin, end in sliding_windows(samples, self.window_s)
        ]
        return max(shares, key=lambda share: share.percent, default=WindowShare(0.0, 0.0))

    def _cpu_percent(self, cpu_s: float, wall_s: float) -> float:
        return min(100.0, 100 * cpu_s / (self.after.cpus * max(wall_s, 1e-9)))

    def _gpu_disturbances(self, device: Device) -> Iterator[str]:
        name = f"{device.kind}:{device.index}"
        before, later = self.before.readings.get(device, {}), [*self._sampled(device), self.after.readings[device]]
        yield from (f"{name}: {throttling}" for throttling in self._throttling(device, before, later))
        for reading in FIXED_READINGS:
            value = before.get(reading)
            changed = [readings[reading] for readings in later if readings.get(reading, value) != value]
            if value and changed:
                yield f"{name}: {reading} changed from {value:g} to {changed[0]:g}"
        usages = self.foreign_usages(device)
        yield from (f"{name}: in use by {usage}" for usage in usages)
        for listing in self.after.listings:
            if gpus.vendor_of(device.kind) == listing.vendor:
                yield from (
                    f"{name}: {problem.reason}"
                    for problem in fitness.gpu_problems([device], listing)
                    if problem.device and not problem.may_pass and not (usages and problem.is_in_use)
                )

    def _sampled(self, device: Device) -> list[Mapping[str, float]]:
        return [sample.readings[device] for sample in self.samples if device in sample.readings]

    def _throttling(
        self, device: Device, before: Mapping[str, float], later: Sequence[Mapping[str, float]]
    ) -> Iterator[str]:
        """Report throttling that is no power cap: by counters, or where there are none by how many samples saw it."""
        share = throttled_share(before, later[-1], self.wall_s, "thermal_throttle")
        peak = self.peak_thermal(device)
        if share is None:
            if count := sum(readings.get("is_thermal_throttled", 0.0) > 0 for readings in later):
                yield f"thermal throttling in {count} of {len(later)} samples"
        elif 100 * share > MAX_THERMAL_PERCENT:
            yield f"thermal throttling for {share:.0%} of the time"
        elif peak.percent > MAX_THERMAL_PERCENT:
            yield f"thermal throttling for {peak.percent:.0f}% of {peak.wall_s:.0f} s"
        if count := sum(readings.get("is_power_braked", 0.0) > 0 for readings in later):
            yield f"power brake in {count} of {len(later)} samples"

    def foreign_usages(self, device: Device) -> list[ForeignUsage]:
        """Return which foreign processes used a GPU, and for how long."""
        sampled = [sample for sample in self.samples if device in sample.foreign_processes]
        polls = [(sample.at_s, sample.foreign_processes[device]) for sample in sampled]
        return foreign_usage(self.before.at_s, polls)

    def peak_thermal(self, device: Device) -> WindowShare:
        """Return the window with the most thermal throttling of a GPU; 0 where its driver does not count it."""
        sampled = [sample for sample in self.samples if device in sample.readings]
        shares = [
            WindowShare(100 * share, wall_s)
            for begin, end in sliding_windows(sampled, self.window_s)
            if (wall_s := end.at_s - begin.at_s)
            and (share := throttled_share(begin.readings[device], end.readings[device], wall_s, "thermal_throttle"))
            is not None
        ]
        return max(shares, key=lambda share: share.percent, default=WindowShare(0.0, 0.0))

    def as_context(self, node: str) -> dict[str, Any]:
        """Return all conditions, for the context of the measurements."""
        machine_checks = checks(Machine(self.after.listings))
        throttles = self.before.cpu_thermal_throttles, self.after.cpu_thermal_throttles
        return {
            "node": node,
            "devices": [self._device_context(device) for device in self.after.readings],
            "drivers": versions(self.after.listings),
            "settings": {check.name: check.found for check in machine_checks},
            "unmet": [check.name for check in machine_checks if not check.is_ok],
            "cpus": self.after.cpus,
            "wall_s": round(self.wall_s, 3),
            "own_cpu_s": round(self.own_cpu_s, 3),
            "foreign_cpu_s": round(self.foreign_cpu_s, 3),
            "load": [list(self.before.load), list(self.after.load)],
            "cpu_mhz": [self.before.cpu_mhz, self.after.cpu_mhz],
            "cpu_thermal_throttles": None if None in throttles else (throttles[1] or 0) - (throttles[0] or 0),
            "samples": len(self.samples),
            "peak_foreign_cpu_percent": round(self.peak_foreign.percent, 1),
        }

    def _device_context(self, device: Device) -> dict[str, Any]:
        before, after = self.before.readings.get(device, {}), self.after.readings[device]
        causes = ("thermal_throttle", "power_throttle")
        shares = {f"{cause}_share": throttled_share(before, after, self.wall_s, cause) for cause in causes}
        usages = [usage.as_context() for usage in self.foreign_usages(device)]
        return {
            "kind": device.kind,
            "index": device.index,
            "serial": device.serial,
            "before": {name: value for name, value in before.items() if not name.endswith(COUNTER_SUFFIXES)},
            "after": {name: value for name, value in after.items() if not name.endswith(COUNTER_SUFFIXES)},
            "during": extremes(self._sampled(device)),
            **{name: share for name, share in shares.items() if share is not None},
            **({"foreign_processes": usages} if usages else {}),
        }


def extremes(samples: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the lowest and the highest value of each reading that is no counter."""
    names = dict.fromkeys(name for readings in samples for name in readings if not name.endswith(COUNTER_SUFFIXES))
    by_name = {name: [readings[name] for readings in samples if name in readings] for name in names}
    return {name: [min(values), max(values)] for name, values in by_name.items()}


def throttled_share(before: Mapping[str, float], after: Mapping[str, float], wall_s: float, cause: str) -> float | None:
    """Return the share of a time in which `thermal_throttle` or `power_throttle` slowed a GPU; None: not counted.

    NVIDIA's drivers count microseconds, AMD's firmware counts its own control cycles: throttled ones, and all.
    """
    if f"{cause}_us" in before and f"{cause}_us" in after:
        throttled_us = after[f"{cause}_us"] - before[f"{cause}_us"]
        return round(throttled_us / 1e6 / max(wall_s, 1e-9), 4)
    if all(name in readings for name in (f"{cause}_ticks", "ticks") for readings in (before, after)):
        ticks = after["ticks"] - before["ticks"]
        return round((after[f"{cause}_ticks"] - before[f"{cause}_ticks"]) / ticks, 4) if ticks > 0 else None
    return None


def describe_disturbances(interval: MeasurementInterval, attempt: Attempt, setting: str | None = None) -> str:
    """Return in one line what disturbed an attempt's measurement; empty if nothing did.

    `setting` stands in for HALOCTL_MAX_FOREIGN_CPU_PERCENT of this process.
    """
    setting = os.environ.get(FOREIGN_VARIABLE) if setting is None else setting
    return "; ".join(interval.disturbances(max_foreign_cpu_percent(attempt.devices, setting)))
