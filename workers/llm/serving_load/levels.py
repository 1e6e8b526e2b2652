"""Measuring one level of load, and what is reported of it."""

import resource
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from workers.llm.command_line import EXIT_FAILED, ProgramFailed
from workers.llm.serving_load.client import (
    CompletionRequest,
    RequestTimes,
    ServerClient,
    closed_loop,
    open_loop,
)
from workers.llm.serving_load.workloads import poisson_arrivals_s, random_requests

COUNTERS = ("haloctl:engine_steps", "haloctl:device_seconds", "haloctl:host_seconds", "haloctl:decode_rows",
            "haloctl:padded_decode_rows", "haloctl:padded_prompt_tokens", "vllm:num_preemptions")  # fmt: skip


@dataclass(frozen=True)
class Level:
    """A load: so many requests in flight, or so many that come each second."""

    prompt_tokens: int
    new_tokens: int
    requests: int
    concurrency: int | None = None
    rate: float | None = None  #: requests per second

    @property
    def facts(self) -> dict[str, Any]:
        """What tells it from other levels."""
        load = {"concurrency": self.concurrency} if self.concurrency else {"rate": self.rate}
        return {"prompt_tokens": self.prompt_tokens, "new_tokens": self.new_tokens, **load}


async def measure_level(client: ServerClient, level: Level, vocab_size: int, seed: int) -> dict[str, Any]:
    """Run a level once, after as many requests again that are not counted as it has in flight.

    Raises ProgramFailed when a request fails: what others took would be no measurement.
    """
    in_flight = level.concurrency or 1
    workload = random_requests(vocab_size, in_flight + level.requests, level.prompt_tokens, level.new_tokens, seed)
    _check(await closed_loop(client, workload[:in_flight], in_flight), level)
    counted = workload[in_flight:]
    before, cpu_s, began = await read_counters(client), _cpu_s(), time.perf_counter()
    times = await _run(client, level, counted, seed)
    wall_s = time.perf_counter() - began
    cpu_s = _cpu_s() - cpu_s
    after = await read_counters(client)
    _check(times, level)
    return {
        **level.facts,
        "wall_s": wall_s,
        "client_cpu_share": cpu_s / wall_s,
        "requests": [
            {
                "ttft_ms": 1e3 * answer.first_token_s,
                "e2e_ms": 1e3 * answer.end_s,
                "gaps_ms": _milliseconds(answer.gaps_s),
            }
            for answer in times
        ],
        "engine": {name: after[name] - before[name] for name in COUNTERS if name in after and name in before},
    }


def _run(client: ServerClient, level: Level, requests: Sequence[CompletionRequest], seed: int) -> Awaitable[Any]:
    if level.rate is not None:
        return open_loop(client, requests, poisson_arrivals_s(len(requests), level.rate, seed))
    return closed_loop(client, requests, level.concurrency or len(requests))


def _check(times: Sequence[RequestTimes], level: Level) -> None:
    failures = [answer.failure for answer in times if answer.failure]
    if failures:
        raise ProgramFailed(
            f"{len(failures)} of {len(times)} requests failed at {level.facts}: {failures[0]}", EXIT_FAILED
        )


def _milliseconds(seconds: Sequence[float]) -> list[float]:
    return [round(1e3 * value, 4) for value in seconds]


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def read_counters(client: ServerClient) -> dict[str, float]:
    """Return the server's counters by name."""
    families = text_string_to_metric_families(await client.metrics())
    return {family.name: sample.value for family in families for sample in family.samples[:1]}
