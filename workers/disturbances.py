"""Whether something else disturbed a measurement: by looks before and after it, and by samples of the time between.

What the kernel and the drivers count is compared: time that the processors computed for others, time that a container
was held back, how often processors and for how long GPUs were slowed by heat; over all of the time, and over spells
as short as SPELL_S: a burst that is nothing in ten minutes is all of what one repetition saw. That a GPU keeps to its
power cap is told, and is no disturbance: most do under a full load. Pure, but for what `told` reads of settings.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.targets import TARGETS
from jobs.task import Attempt, Device
from workers import fitness, gpus
from workers.conditions import Look, Sample
from workers.devices import FOREIGN_VARIABLE, foreign_cpu_percent, versions
from workers.gpu_listing import COUNTERS
from workers.machine_settings import Machine, checks
from workers.strangers import Visit, visits

MOST_SLOWED = 0.01  #: of a measurement's time, by heat
CAPS = ("power_cap_w",)  #: readings that nobody is to change meanwhile
SPELL_S = 5.0  #: shorter ones tell little: the kernel counts in hundredths of a second


def most_foreign_percent(devices: Sequence[Device], given: str | None) -> float:
    """How much of the processors others may use during a measurement: as the node has it, else as the target does."""
    by_target = min((TARGETS[device.kind].max_foreign_cpu_percent for device in devices), default=100.0)
    by_node = foreign_cpu_percent(given)
    return by_target if by_node is None else by_node


@dataclass(frozen=True)
class Burst:
    """A share of a stretch of time."""

    percent: float
    wall_s: float


def spells(samples: Sequence[Sample]) -> Iterator[tuple[Sample, Sample]]:
    """For every sample the stretch that ends with it and is just long enough."""
    begin = 0
    for end, one in enumerate(samples):
        while begin + 1 < end and one.at_s - samples[begin + 1].at_s >= SPELL_S:
            begin += 1
        if one.at_s - samples[begin].at_s >= SPELL_S:
            yield samples[begin], one


@dataclass(frozen=True)
class Between:
    """What two looks, a measurement's own processor time and the samples of it say of the time between them."""

    before: Look
    after: Look
    own_cpu_s: float
    samples: Sequence[Sample] = ()

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
        whole = Burst(self._percent(self.foreign_cpu_s, self.wall_s), self.wall_s)
        held_back = Burst(self._percent(self.after.held_back_s - self.before.held_back_s, self.wall_s), self.wall_s)
        yield from self._of_processors("others used {}", (whole, self.worst_foreign), most_foreign)
        held_backs = (held_back, self._worst_held_back)
        yield from self._of_processors("its container's limit held {} back", held_backs, most_foreign)
        if throttles := (self.after.cpu_throttles or 0) - (self.before.cpu_throttles or 0):
            yield f"heat slowed the processors {throttles} times"
        for device in self.after.readings:
            yield from self._of_gpu(device)

    def _of_processors(self, verb: str, bursts: "tuple[Burst, Burst]", most: float) -> Iterator[str]:
        """The whole time, or else the worst spell of it."""
        whole, worst = bursts
        if max(whole.percent, worst.percent) > most:
            found, when = (whole, "meanwhile") if whole.percent > most else (worst, f"for {worst.wall_s:.0f} s of it")
            said = verb.format(f"{found.percent:.0f}% of {self.after.cpus} processors")
            yield f"{said} {when}, at most {most:g}% is allowed ({FOREIGN_VARIABLE})"

    @property
    def worst_foreign(self) -> "Burst":
        """The spell in which the processors computed the most for others."""
        known = [one for one in self.samples if one.own_cpu_s is not None]
        return self._worst(known, lambda one: one.busy_s - (one.own_cpu_s or 0.0))

    @property
    def _worst_held_back(self) -> "Burst":
        return self._worst(self.samples, lambda one: one.held_back_s)

    def _worst(self, samples: Sequence[Sample], cpu_s: Callable[[Sample], float]) -> "Burst":
        found = [
            Burst(self._percent(cpu_s(end) - cpu_s(begin), wall_s := end.at_s - begin.at_s), wall_s)
            for begin, end in spells(samples)
        ]
        return max(found, key=lambda burst: burst.percent, default=Burst(0.0, 0.0))

    def _percent(self, cpu_s: float, wall_s: float) -> float:
        return min(100.0, 100 * cpu_s / (self.after.cpus * max(wall_s, 1e-9)))

    def _of_gpu(self, device: Device) -> Iterator[str]:
        name = f"{device.kind}:{device.index}"
        before, after = self.before.readings.get(device, {}), self.after.readings[device]
        meanwhile = [one.readings[device] for one in self.samples if device in one.readings]
        yield from (f"{name} was slowed by heat {when}" for when in self._heat(device, before, after, meanwhile))
        for reading in CAPS:
            was = before.get(reading)
            if was and (others := [one[reading] for one in (*meanwhile, after) if one.get(reading, was) != was]):
                yield f"{name}: its {reading} changed from {was:g} to {others[0]:g}"
        seen = self.visits(device)
        yield from (f"{name}: in use by {visit}" for visit in seen)
        for listing in self.after.listings:
            if gpus.vendor_of(device.kind) == listing.vendor:
                yield from (
                    f"{name}: {trouble.reason}"
                    for trouble in fitness.troubles([device], listing)
                    if trouble.device and not trouble.passes and not (seen and trouble.is_user)
                )

    def _heat(
        self,
        device: Device,
        before: Mapping[str, float],
        after: Mapping[str, float],
        meanwhile: Sequence[Mapping[str, float]],
    ) -> Iterator[str]:
        """By what is counted; where nothing is, by what was seen."""
        slowed = slowed_share(before, after, self.wall_s, "heat")
        worst = self.worst_heat(device)
        if slowed is None:
            looks = [*meanwhile, after]
            if hot := sum(one.get("is_slowed_by_heat", 0.0) > 0 for one in looks):
                yield f"in {hot} of {len(looks)} looks"
        elif slowed > MOST_SLOWED:
            yield f"for {slowed:.0%} of the time"
        elif worst.percent > 100 * MOST_SLOWED:
            yield f"for {worst.percent:.0f}% of {worst.wall_s:.0f} s of it"

    def visits(self, device: Device) -> list[Visit]:
        """Who else was on a GPU meanwhile."""
        looks = [(one.at_s, one.strangers[device]) for one in self.samples if device in one.strangers]
        return visits(self.before.at_s, looks)

    def worst_heat(self, device: Device) -> "Burst":
        """The spell in which heat slowed a GPU for the largest share; none where drivers count none."""
        found = [
            Burst(100 * share, wall_s)
            for begin, end in spells([one for one in self.samples if device in one.readings])
            if (wall_s := end.at_s - begin.at_s)
            and (share := slowed_share(begin.readings[device], end.readings[device], wall_s, "heat")) is not None
        ]
        return max(found, key=lambda burst: burst.percent, default=Burst(0.0, 0.0))

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
            "samples": len(self.samples),
            "foreign_percent_of_worst_spell": round(self.worst_foreign.percent, 1),
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
            "during": extremes([one.readings[device] for one in self.samples if device in one.readings]),
            **{name: share for name, share in slowed.items() if share is not None},
            **({"strangers": [visit.told() for visit in found]} if (found := self.visits(device)) else {}),
        }


def extremes(found: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Of each reading that is no counter, the lowest and the highest of several looks."""
    names = dict.fromkeys(name for one in found for name in one if not name.endswith(COUNTERS))
    told = {name: [one[name] for one in found if name in one] for name in names}
    return {name: [min(values), max(values)] for name, values in told.items()}


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
