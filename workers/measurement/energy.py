"""Energy and power of measured calls, from samples of the host's counters and power readings. Pure.

Of GPUs the driver's energy counter is taken, else its power readings are integrated; of CPUs the packages' counters,
which count what else runs on them, too. The energy of a span is its length times the mean power between the first and
the last sample inside, so that what a process did before and after its calls has no part in it. Calls that end sooner
than a few samples have no energy: `repetitions` make them last longer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jobs.task import Device, Measurement, Span
from workers.machine import gpus
from workers.measurement.host_samples import HostSample, HostSnapshot

MIN_SAMPLES = 3  #: inside each span
MAX_CLOCK_STEP_S = 0.05  #: of Unix time against the monotonic clock, beyond which spans can't be told from samples
ENERGY_COUNTER, POWER_READING = "energy_j", "power_w"  #: names of GPUs' readings
WORKLOAD_KEYS = ("batch", "prompt_tokens", "new_tokens")

#: Metrics of the energy of one call, and of tokens per joule, by the metric that times the calls.
ENERGY_METRICS = {
    "ttft_ms": ("prefill_j", "prefill_tokens_per_j"),
    "itl_ms": ("decode_step_j", "decode_tokens_per_j"),
    "e2e_ms": ("generation_j", "output_tokens_per_j"),
}


Host = HostSnapshot | HostSample
Points = list[tuple[float, float]]  #: moments, by the monotonic clock, with joules


@dataclass(frozen=True)
class EnergyPoint:
    """The energy that all devices together have taken by a moment, from an arbitrary origin."""

    at_s: float  #: by the monotonic clock
    joules: float


@dataclass(frozen=True)
class EnergySeries:
    """The energy of the measured devices over time."""

    source: str
    points: Sequence[EnergyPoint] = ()
    unix_offset_s: float = 0.0  #: Unix time minus that of the monotonic clock

    def inside(self, span: Span) -> list[EnergyPoint]:
        """Return the points of a span."""
        return [point for point in self.points if span.begin_s <= point.at_s + self.unix_offset_s <= span.end_s]

    def powers_w(self, spans: Iterable[Span]) -> tuple[float, ...]:
        """Return the mean powers between adjacent points inside spans."""
        return tuple(
            (after.joules - before.joules) / (after.at_s - before.at_s)
            for span in spans
            for before, after in pairwise(self.inside(span))
        )

    def energies_j(self, spans: Sequence[Span]) -> tuple[float, ...]:
        """Return the energy of each span; nothing if one of them has too few points."""
        by_span = [self.inside(span) for span in spans]
        if any(len(points) < MIN_SAMPLES for points in by_span):
            return ()
        return tuple(
            (points[-1].joules - points[0].joules) / (points[-1].at_s - points[0].at_s) * (span.end_s - span.begin_s)
            for span, points in zip(spans, by_span, strict=True)
        )


def energy_series(before: HostSnapshot, samples: Sequence[HostSample], after: HostSnapshot) -> EnergySeries:
    """Return the energy of the measured devices, by the snapshots and the samples; no points where none tells it."""
    if abs(after.unix_offset_s - before.unix_offset_s) > MAX_CLOCK_STEP_S:
        return EnergySeries("the clock was changed")
    hosts: list[Host] = [before, *samples, after]
    devices = [device for device in after.readings if gpus.vendor_of(device.kind)]
    source, points = _gpu_energy(hosts, devices) if devices else _cpu_energy(hosts)
    return EnergySeries(source, [EnergyPoint(*point) for point in points], after.unix_offset_s)


def _gpu_energy(hosts: Sequence[Host], devices: Sequence[Device]) -> tuple[str, Points]:
    for reading, source in ((ENERGY_COUNTER, "energy counters"), (POWER_READING, "power readings")):
        known = [host for host in hosts if all(reading in host.readings.get(device, {}) for device in devices)]
        if len(known) > 1:
            totals = [(host.at_s, sum(host.readings[device][reading] for device in devices)) for host in known]
            return source, totals if reading == ENERGY_COUNTER else _integrate(totals)
    return "none", []


def _integrate(powers_w: Points) -> Points:
    """Return the energy by the trapezoidal rule."""
    points = [(powers_w[0][0], 0.0)]
    for (begin_s, power_w), (end_s, next_w) in pairwise(powers_w):
        points.append((end_s, points[-1][1] + (power_w + next_w) / 2 * (end_s - begin_s)))
    return points


def _cpu_energy(hosts: Sequence[Host]) -> tuple[str, Points]:
    known = [host for host in hosts if host.cpu_energy]
    if not known:
        return "none", []
    points = [(known[0].at_s, 0.0)]
    for before, after in pairwise(known):
        points.append((after.at_s, points[-1][1] + _counted_j(before, after)))
    return "CPU packages", points


def _counted_j(before: Host, after: Host) -> float:
    """Return what the counters of packages counted; one that is smaller than before has begun again."""
    return sum(
        (counter.joules - before.cpu_energy[zone].joules) % counter.range_j
        for zone, counter in after.cpu_energy.items()
        if zone in before.cpu_energy and counter.range_j > 0
    )


def energy_measurements(measurements: Iterable[Measurement], series: EnergySeries) -> Iterator[Measurement]:
    """Yield energy and tokens per joule of each timed metric, and the power of each workload, as far as sampled."""
    by_workload: dict[tuple[Any, ...], list[Measurement]] = {}
    for measurement in measurements:
        if measurement.metric in ENERGY_METRICS and (energies_j := series.energies_j(measurement.spans)):
            yield from _call_energy(measurement, energies_j, series.source)
            workload = _workload(measurement.context)
            by_workload.setdefault(tuple(workload.values()), []).append(measurement)
    for timed in by_workload.values():
        powers_w = series.powers_w(span for measurement in timed for span in measurement.spans)
        context = {**_workload(timed[0].context), "energy_source": series.source}
        yield Measurement("power_w", powers_w, context)
        yield Measurement("power_max_w", (max(powers_w),), context)


def _call_energy(measurement: Measurement, energies_j: Sequence[float], source: str) -> Iterator[Measurement]:
    energy, rate = ENERGY_METRICS[measurement.metric]
    context = {**_workload(measurement.context), "groups": [1] * len(energies_j), "energy_source": source}
    by_span = list(zip(measurement.spans, energies_j, strict=True))
    yield Measurement(energy, tuple(joules / span.calls for span, joules in by_span), context)
    if all(energies_j):
        yield Measurement(rate, tuple(span.tokens / joules for span, joules in by_span), context)


def _workload(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: context[key] for key in WORKLOAD_KEYS if key in context}
