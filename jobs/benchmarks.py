"""How a benchmark's processes follow each other, and what is told of whole generations."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import fmean, quantiles
from typing import Any, NamedTuple, TypeVar

from jobs.task import Measurement

Entry = TypeVar("Entry")

SEED = 0  #: of an order of chance, which is the same wherever and whenever it is made


class Order(StrEnum):
    """In which order a benchmark's processes run, where there are several workloads, each timed by several."""

    SEQUENTIAL = "sequential"  #: all of one workload, then all of the next
    INTERLEAVED = "interleaved"  #: one of each workload, then one of each again: what drifts does so for all of them
    SHUFFLED = "shuffled"  #: by chance, and when it is done again the same


def in_order(entries: Sequence[Entry], processes: int, order: Order) -> list[tuple[Entry, int]]:
    """Every entry with each number of a process, in the order in which they are to run."""
    by_entry = [(entry, number) for entry in entries for number in range(processes)]
    if order is Order.INTERLEAVED:
        return sorted(by_entry, key=lambda pair: pair[1])
    if order is Order.SHUFFLED:
        random.Random(SEED).shuffle(by_entry)
    return by_entry


def file_name(name: str, process: int) -> str:
    """What one of an entry's processes writes."""
    return f"{name}.json" if process == 0 else f"{name}.{process}.json"


class Generation(NamedTuple):
    """One whole generation of a batch: `N` new tokens a row are a prefill and `N - 1` decode steps."""

    ttft_ms: float
    steps_ms: Sequence[float]


Groups = Sequence[Sequence[Generation]]  #: those of each process, without its warm-up


def measurements_of(groups: Groups, about: Mapping[str, Any]) -> Iterator[Measurement]:
    """What whole generations come to: each is one sample of each metric; `about` names batch and new tokens."""
    generations = [one for group in groups for one in group]
    if not generations:
        return
    context = {**about, "groups": list(map(len, groups))}
    e2e_ms = [one.ttft_ms + sum(one.steps_ms) for one in generations]
    tokens = about["batch"] * (1 + len(generations[0].steps_ms))
    yield Measurement("generation_ttft_ms", tuple(one.ttft_ms for one in generations), context)
    yield Measurement("e2e_ms", tuple(e2e_ms), context)
    yield Measurement("output_tokens_per_s", tuple(tokens / (time / 1e3) for time in e2e_ms), context)
    if all(one.steps_ms for one in generations):
        for metric, statistic in STEPS.items():
            yield Measurement(metric, tuple(statistic(one.steps_ms) for one in generations), context)


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent of all are below, between two of them where that is no whole one."""
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]


#: Of the decode steps of one generation.
STEPS: dict[str, Callable[[Sequence[float]], float]] = {
    "itl_mean_ms": fmean,
    "itl_p50_ms": lambda steps: percentile(steps, 50),
    "itl_p99_ms": lambda steps: percentile(steps, 99),
}
