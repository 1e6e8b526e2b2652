"""Benchmark of the torch engines: whole generations timed on every rank; a step is as slow as its last."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jobs.benchmarks import Generation, Order, file_name, in_order, measurements_of
from jobs.stages.base import OUTPUTS, Cell, Settings, Stage, wants_quiet
from jobs.stages.benchmark import how_often
from jobs.stages.torch_ranks import on_nodes, ranks, settings_of
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain

RATES = {"ttft_ms": "prefill_tokens_per_s", "itl_ms": "decode_tokens_per_s"}


class Workload(NamedTuple):
    """What one process times."""

    batch: int
    prompt_tokens: int

    @property
    def name(self) -> str:
        """Of its report."""
        return f"benchmark_bs{self.batch}_t{self.prompt_tokens}"


More = Callable[[str], Mapping[str, Any]]
Reports = Sequence[Mapping[str, Any]]  #: of the processes that timed one workload


def settings(cell: Cell) -> dict[str, Any]:
    """The split, the workload, and how often it is repeated."""
    return {**settings_of(cell), **how_often(cell)}


def workloads(settings: Settings) -> list[Workload]:
    """Every batch size with every prompt length."""
    return [Workload(*pair) for pair in product(settings["batch"], settings["prompt_tokens"])]


def runs(settings: Settings) -> list[tuple[Workload, int]]:
    """What each process times, with its number among those that time the same, in the order in which they run."""
    order = Order(settings.get("order", Order.SEQUENTIAL))
    return in_order(workloads(settings), settings.get("processes", 1), order)


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Each a fresh program; warm-up repetitions come first and are told apart when they are read."""
    rounds = settings["warmup"] + settings["repetitions"]
    return [
        ranks(
            "torch_benchmark",
            {**settings, "batch": [one.batch], "prompt_tokens": [one.prompt_tokens]},
            f"--repetitions={rounds}",
            f"--report={OUTPUTS}/{file_name(one.name, process)}",
        )
        for one, process in runs(settings)
    ]


def resources(cell: Cell) -> Resources:
    """The variant's devices; the node to itself where that is asked for, or devices are the host's own cores."""
    return on_nodes(cell, bytes_per_parameter=4, is_quiet=wants_quiet(cell))


def parse(settings: Settings, folder: Path) -> Outcome:
    """TTFT, ITL and whole generations of each workload by its slowest rank in each step, and memory and load time."""
    measurements: list[Measurement] = []
    loads_s: list[float] = []
    for workload in workloads(settings):
        names = [file_name(workload.name, process) for process in range(settings.get("processes", 1))]
        reports = [json.loads((folder / OUTPUTS / name).read_text()) for name in names]
        loads_s += [max(rank["load_s"] for rank in found["ranks"]) for found in reports]
        measurements += _of_workload(settings, reports)
    return Outcome((Measurement("load_s", tuple(loads_s)), *measurements))


def _of_workload(settings: Settings, reports: Reports) -> Iterator[Measurement]:
    about, warmup = dict(reports[0]["workloads"][0]), settings["warmup"]
    how = {
        "backend": reports[0]["backend"],
        "threads_per_rank": reports[0]["threads_per_rank"],
        **({"torch": settings["torch"]} if settings.get("torch") else {}),
    }
    every = [_generations(found) for found in reports]
    groups = [of_process[warmup:] for of_process in every]
    yield from times_of(every, warmup, {**about, **how}, lambda metric: {"ranks": _of_ranks(metric, reports, warmup)})
    yield from measurements_of(groups, {**about, **how})
    if settings.get("torch", {}).get("compile_mode") and warmup:
        yield Measurement("torch_compile_s", tuple(map(_first_calls_s, every)), {**about, **how})
    for metric in ("host_memory_bytes", "device_memory_bytes"):
        totals = [float(sum(rank[metric] for rank in found["ranks"])) for found in reports]
        if any(totals):
            yield Measurement(metric, tuple(totals), {**about, **how})


def _generations(found: Mapping[str, Any]) -> list[Generation]:
    """Those of one process, each of their steps as slow as on its slowest rank."""
    times = [rank["times"][0] for rank in found["ranks"]]
    ttft_ms = [max(of_round) for of_round in zip(*(own["ttft_ms"] for own in times), strict=True)]
    rounds = zip(*(own["steps_ms"] for own in times), strict=True)
    steps_ms = [[max(step) for step in zip(*of_round, strict=True)] for of_round in rounds]
    return [Generation(*one) for one in zip(ttft_ms, steps_ms, strict=True)]


def _first_calls_s(of_process: Sequence[Generation]) -> float:
    """What the first prefill and the first decode step took longer than the last ones."""
    first, last = of_process[0], of_process[-1]
    steps_ms = first.steps_ms[0] - last.steps_ms[-1] if first.steps_ms else 0.0
    return max(0.0, (first.ttft_ms - last.ttft_ms + steps_ms) / 1e3)


def times_of(
    every: Sequence[Sequence[Generation]], warmup: int, about: Mapping[str, Any], more: More = lambda metric: {}
) -> Iterator[Measurement]:
    """TTFT, ITL as the mean of a generation's steps, and the tokens per second that follow, by each process's
    generations; `more` is what else is told of a metric."""
    tokens = {"ttft_ms": about["batch"] * about["prompt_tokens"], "itl_ms": about["batch"]}
    for metric, rate in RATES.items():
        times = [_samples(metric, of_process) for of_process in every]
        if not all(times):
            continue  # a single new token has no decode step
        samples = tuple(sample for of_process in times for sample in of_process[warmup:])
        context = {
            **about,
            "warmup_ms": [sample for of_process in times for sample in of_process[:warmup]],
            "groups": [len(of_process) - warmup for of_process in times],
        }
        yield Measurement(metric, samples, {**context, **more(metric)})
        yield Measurement(rate, tuple(tokens[metric] / (sample / 1e3) for sample in samples), context)


def _samples(metric: str, generations: Sequence[Generation]) -> list[float]:
    if metric == "ttft_ms":
        return [one.ttft_ms for one in generations]
    return [fmean(one.steps_ms) for one in generations if one.steps_ms]


def _of_ranks(metric: str, reports: Reports, warmup: int) -> list[dict[str, Any]]:
    found = []
    for number, rank in enumerate(reports[0]["ranks"]):
        times = [of_process["ranks"][number]["times"][0] for of_process in reports]
        own = [sample for one in times for sample in _samples(metric, _own(one)[warmup:])]
        found.append({**{key: rank[key] for key in ("rank", "host", "device")}, "samples": own})
    return found


def _own(times: Mapping[str, Any]) -> list[Generation]:
    return [Generation(*one) for one in zip(times["ttft_ms"], times["steps_ms"], strict=True)]


TORCH_BENCHMARK = Stage(
    name="benchmark",
    title="benchmark",
    needs=(),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={".json": "report", ".csv": "report"},
    is_measured=True,
    needs_weights=True,
)
