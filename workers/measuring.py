"""A measurement with all that it was made under: run again where something else disturbed it, and marked as such."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from jobs.task import Attempt, Measurement, Outcome
from workers import conditions, disturbances
from workers.conditions import Look
from workers.disturbances import Between
from workers.processes import Cancellation, Ended
from workers.sampling import Sampling

#: Runs an attempt's commands, in at most so many seconds, and reads what came of them.
CarryOut = Callable[[float], tuple[Ended, Outcome]]


def measured(
    attempt: Attempt,
    carry_out: CarryOut,
    versions: Mapping[str, str],
    cancellation: Cancellation,
    look: Callable[[], Look] | None = None,
) -> tuple[Ended, Outcome]:
    """Carry a measuring attempt out, again while it is disturbed and its settings allow that; the last one counts.

    What the disturbed ones measured is told in the context of that, and never mixed with it. All of them together
    take no longer than the attempt may. Ranks on several nodes are not run again: the others would have to be, too.
    """
    look = look or (lambda: conditions.look(attempt.devices))
    deadline = time.monotonic() + attempt.timeout_s
    earlier: list[tuple[str, Outcome]] = []
    again, left_s = 0 if attempt.gang else attempt.settings.get("max_disturbed_reruns", 0), attempt.timeout_s
    while True:
        before = look()
        with Sampling(attempt) as sampling:
            ended, outcome = carry_out(left_s)
        between = Between(before, look(), sum(ran.process.cpu_s for ran in ended.ran), sampling.samples)
        reason = disturbances.disturbed(between, attempt)
        told: dict[str, Any] = {"machine": {**between.told(attempt.places[0].node), "versions": dict(versions)}}
        if outcome.failure or not reason or len(earlier) == again or cancellation.is_wished:
            break
        left_s = deadline - time.monotonic()
        if left_s < 2 * between.wall_s:
            break
        earlier.append((reason, outcome))
    if vmfb := _vmfb(attempt):
        told |= {"vmfb": vmfb}
    return ended, _marked(outcome, told, reason, earlier)


def _marked(outcome: Outcome, told: dict[str, Any], reason: str, earlier: Sequence[tuple[str, Outcome]]) -> Outcome:
    mark = {"disturbed": reason} if reason else {}
    measurements = tuple(
        replace(one, context={**one.context, **told, **mark, **_disturbed_runs(number, one, earlier)})
        for number, one in enumerate(outcome.measurements)
    )
    runs = f", as it was {len(earlier)} times before" if earlier else ""
    warnings = (f"disturbed{runs}: {reason}",) if reason and outcome.measurements else ()
    return replace(outcome, measurements=measurements, warnings=(*outcome.warnings, *warnings))


def _disturbed_runs(
    number: int, measurement: Measurement, earlier: Sequence[tuple[str, Outcome]]
) -> dict[str, list[dict[str, Any]]]:
    """What the runs before measured in the same place of their lists."""
    found = []
    for reason, outcome in earlier:
        with suppress(IndexError):
            if (same := outcome.measurements[number]).metric == measurement.metric:
                found.append({"disturbed": reason, "samples": list(same.samples)})
    return {"disturbed_runs": found} if found else {}


def _vmfb(attempt: Attempt) -> str:
    """The digest of the compiled program that is measured."""
    return next((one.sha256 for one in attempt.inputs.get("compile", ()) if one.kind == "vmfb"), "")
