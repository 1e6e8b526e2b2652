"""Runs a measurement with its conditions: repeated where something else disturbed it, and marked as such."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from jobs.task import Attempt, Measurement, Outcome
from workers.measurement import host_samples
from workers.measurement.disturbances import WINDOW_S, MeasurementInterval, describe_disturbances
from workers.measurement.energy import energy_measurements, energy_series
from workers.measurement.host_samples import HostSnapshot
from workers.measurement.sampling import Sampler
from workers.processes.cancellation import Cancellation
from workers.processes.client import RunResult

#: Runs an attempt's commands within a time in seconds, and reads their results.
RunCommands = Callable[[float], tuple[RunResult, Outcome]]
#: Measures an attempt as `run_measured` does.
Measure = Callable[[Attempt, RunCommands, Mapping[str, str], Cancellation], tuple[RunResult, Outcome]]


def run_measured(
    attempt: Attempt,
    run_commands: RunCommands,
    versions: Mapping[str, str],
    cancellation: Cancellation,
    take_snapshot: Callable[[], HostSnapshot] | None = None,
    create_sampler: Callable[[Attempt], Sampler] = Sampler,
    window_s: float = WINDOW_S,
) -> tuple[RunResult, Outcome]:
    """Run a measuring attempt, again while it is disturbed and its settings allow that; the last run counts.

    What the disturbed runs measured is kept in that one's context, and never mixed with it. All runs together take no
    longer than the attempt's timeout. Ranks on several nodes are not run again: all of them would have to be.
    """
    take_snapshot = take_snapshot or (lambda: host_samples.take_snapshot(attempt.devices))
    deadline = time.monotonic() + attempt.timeout_s
    disturbed_runs: list[tuple[str, Outcome]] = []
    max_reruns = 0 if attempt.gang else attempt.settings.get("max_disturbed_reruns", 0)
    left_s = attempt.timeout_s
    while True:
        before = take_snapshot()
        with create_sampler(attempt) as sampler:
            result, outcome = run_commands(left_s)
        own_cpu_s = sum(command.process.cpu_s for command in result.commands)
        interval = MeasurementInterval(before, take_snapshot(), own_cpu_s, sampler.samples, window_s)
        outcome = outcome if attempt.gang else _with_energy(outcome, interval)  # of other nodes nothing is known here
        reason = describe_disturbances(interval, attempt)
        if outcome.failure or not reason or len(disturbed_runs) == max_reruns or cancellation.is_requested:
            break
        left_s = deadline - time.monotonic()
        if left_s < 2 * interval.wall_s:
            break
        disturbed_runs.append((reason, outcome))
    context: dict[str, Any] = {"machine": {**interval.as_context(attempt.places[0].node), "versions": dict(versions)}}
    if vmfb := _vmfb_digest(attempt):
        context["vmfb"] = vmfb
    return result, _with_context(outcome, context, reason, disturbed_runs)


def _with_energy(outcome: Outcome, interval: MeasurementInterval) -> Outcome:
    """Add the energy of the timed calls, where the devices or the machine tell it."""
    series = energy_series(interval.before, interval.samples, interval.after)
    return replace(outcome, measurements=(*outcome.measurements, *energy_measurements(outcome.measurements, series)))


def _with_context(
    outcome: Outcome, context: dict[str, Any], reason: str, disturbed_runs: Sequence[tuple[str, Outcome]]
) -> Outcome:
    mark = {"disturbed": reason} if reason else {}
    measurements = tuple(
        replace(
            measurement,
            context={
                **measurement.context,
                **context,
                **mark,
                **_disturbed_context(position, measurement, disturbed_runs),
            },
        )
        for position, measurement in enumerate(outcome.measurements)
    )
    runs = f" in {len(disturbed_runs) + 1} runs in a row" if disturbed_runs else ""
    warnings = (f"disturbed{runs}: {reason}",) if reason and outcome.measurements else ()
    return replace(outcome, measurements=measurements, warnings=(*outcome.warnings, *warnings))


def _disturbed_context(
    position: int, measurement: Measurement, disturbed_runs: Sequence[tuple[str, Outcome]]
) -> dict[str, list[dict[str, Any]]]:
    """Return what the disturbed runs measured at the same position, as a part of the context."""
    runs = []
    for reason, outcome in disturbed_runs:
        with suppress(IndexError):
            if (same := outcome.measurements[position]).metric == measurement.metric:
                runs.append({"disturbed": reason, "samples": list(same.samples)})
    return {"disturbed_runs": runs} if runs else {}


def _vmfb_digest(attempt: Attempt) -> str:
    """Return the digest of the compiled program that is measured."""
    artifacts = attempt.inputs.get("compile", ())
    return next((artifact.sha256 for artifact in artifacts if artifact.kind == "vmfb"), "")
