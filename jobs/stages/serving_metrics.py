"""Metrics of a server under load: times of requests, tokens per second, and what keeps a service level."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from jobs.metrics import SERVING_TIMES
from jobs.stages.generation_metrics import percentile
from jobs.task import Measurement

BUSY_CLIENT = 0.9  #: of a core: from then on the client is part of what is measured
HELD = 0.99  #: of the requests must keep the limits at a rate that holds them
PERCENTILES = {"_p90": 90, "_p99": 99}

Round = Mapping[str, Any]  #: what the client reports of a level of load that it measured once
Limits = Mapping[str, float]  #: of `ttft_ms` and `tpot_ms`


def load_measurements(levels: Sequence[Round], devices: int, limits: Limits | None) -> list[Measurement]:
    """Return the metrics of all levels, each of which was measured in one round or several.

    Of times each request is a sample; of a figure of a whole round each round is one. `batch` in their context is
    the number of requests in flight.
    """
    rounds: dict[tuple[Any, ...], list[Round]] = {}
    for level in levels:
        rounds.setdefault((level["prompt_tokens"], level.get("concurrency"), level.get("rate")), []).append(level)
    measurements = [
        measurement for same in rounds.values() for measurement in _level_measurements(same, devices, limits)
    ]
    return [*measurements, *_highest_rates(measurements)]


def _level_measurements(rounds: Sequence[Round], devices: int, limits: Limits | None) -> Iterator[Measurement]:
    context = _context(rounds)
    for name in SERVING_TIMES:
        values = [_times_ms(played, name) for played in rounds]
        if not all(values):
            continue  # a single token has no next
        yield Measurement(
            f"serving_{name}_ms",
            tuple(value for played in values for value in played),
            {**context, "groups": list(map(len, values))},
        )
        for suffix, percent in PERCENTILES.items():
            yield _of_rounds(f"serving_{name}{suffix}_ms", [percentile(played, percent) for played in values], context)
    yield from _rates(rounds, devices, context)
    if limits:
        yield _goodput(rounds, limits, context)


def _context(rounds: Sequence[Round]) -> dict[str, Any]:
    level = rounds[0]
    busiest = max(played["client_cpu_share"] for played in rounds)
    return {
        **({"batch": level["concurrency"]} if level.get("concurrency") else {"rate": level["rate"]}),
        "prompt_tokens": level["prompt_tokens"],
        "new_tokens": level["new_tokens"],
        "client_cpu_share": [played["client_cpu_share"] for played in rounds],
        "engine": [played["engine"] for played in rounds],
        **({"disturbed": f"the client used {busiest:.0%} of a core"} if busiest >= BUSY_CLIENT else {}),
    }


def _times_ms(played: Round, name: str) -> list[float]:
    requests = played["requests"]
    if name == "itl":
        return [gap for request in requests for gap in request["gaps_ms"]]
    if name == "tpot":
        return _tpots_ms(played)
    return [request[f"{name}_ms"] for request in requests]


def _tpots_ms(played: Round) -> list[float]:
    """Return the mean time of each request's tokens after the first; nothing where there are none."""
    later = played["new_tokens"] - 1
    return [(request["e2e_ms"] - request["ttft_ms"]) / later for request in played["requests"]] if later else []


def _rates(rounds: Sequence[Round], devices: int, context: Mapping[str, Any]) -> Iterator[Measurement]:
    tokens = [len(played["requests"]) * played["new_tokens"] / played["wall_s"] for played in rounds]
    yield _of_rounds("serving_tokens_per_s", tokens, context)
    yield _of_rounds("serving_tokens_per_s_per_device", [rate / devices for rate in tokens], context)
    tpot_ms = [median(_tpots_ms(played) or [0.0]) for played in rounds]
    if all(tpot_ms):
        yield _of_rounds("serving_tokens_per_s_per_user", [1e3 / time_ms for time_ms in tpot_ms], context)


def _goodput(rounds: Sequence[Round], limits: Limits, context: Mapping[str, Any]) -> Measurement:
    kept = [_keeping(played, limits) for played in rounds]
    rates = [count / played["wall_s"] for count, played in zip(kept, rounds, strict=True)]
    share = min(count / len(played["requests"]) for count, played in zip(kept, rounds, strict=True))
    return _of_rounds("serving_goodput_rps", rates, {**context, "limits": dict(limits), "kept_share": share})


def _keeping(played: Round, limits: Limits) -> int:
    """Return how many requests keep all limits; a single token has no next that could be late."""
    times_ms = {"ttft_ms": _times_ms(played, "ttft"), "tpot_ms": _tpots_ms(played)}
    late = {number for name, most in limits.items() for number, time_ms in enumerate(times_ms[name]) if time_ms > most}
    return len(played["requests"]) - len(late)


def _highest_rates(measurements: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yield, for each prompt length, the highest rate at which nearly all requests keep the limits."""
    held: dict[int, float] = {}
    for measurement in measurements:
        facts = measurement.context
        if facts.get("rate") and facts.get("kept_share", 0) >= HELD:
            held[facts["prompt_tokens"]] = max(held.get(facts["prompt_tokens"], 0.0), float(facts["rate"]))
    for prompt_tokens, rate in held.items():
        yield Measurement("serving_max_rate_rps", (rate,), {"prompt_tokens": prompt_tokens})


def _of_rounds(metric: str, values: Sequence[float], context: Mapping[str, Any]) -> Measurement:
    return Measurement(metric, tuple(values), {**context, "groups": [1] * len(values)})
