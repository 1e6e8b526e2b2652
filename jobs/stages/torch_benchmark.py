"""Benchmark of the torch engines: whole generations, timed on every rank; a step is as slow as its slowest rank."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jobs.process_order import ProcessOrder, count_processes, order_processes, report_name
from jobs.stages.base import OUTPUTS, Cell, Settings, Stage, latency_figure, needs_exclusive_node
from jobs.stages.benchmark import sampling_settings
from jobs.stages.generation_metrics import Generation, generation_measurements
from jobs.stages.torch_ranks import rank_resources, ranks_command, settings_of
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain

RATES = {"ttft_ms": "prefill_tokens_per_s", "itl_ms": "decode_tokens_per_s"}


class TimedWorkload(NamedTuple):
    """The workload that one process times."""

    batch: int
    prompt_tokens: int

    @property
    def name(self) -> str:
        """The name of its report."""
        return f"benchmark_bs{self.batch}_t{self.prompt_tokens}"


Reports = Sequence[Mapping[str, Any]]  #: of the processes that timed one workload


def settings(cell: Cell) -> dict[str, Any]:
    """Return the split, the workload, and how often it is repeated."""
    return {**settings_of(cell), **sampling_settings(cell)}


def workloads(settings: Settings) -> list[TimedWorkload]:
    """Return every batch size with every prompt length."""
    return [TimedWorkload(*pair) for pair in product(settings["batch"], settings["prompt_tokens"])]


def ordered_workloads(settings: Settings) -> list[tuple[TimedWorkload, int]]:
    """Return the workload of each process, with the process's number among those of that workload, as they run."""
    order = ProcessOrder(settings.get("order", ProcessOrder.SEQUENTIAL))
    return order_processes(workloads(settings), settings.get("processes", 1), order)


def count_commands(settings: Settings) -> int:
    """Return how many commands there are."""
    return count_processes(settings, 1)


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return a program for each process; its first repetitions are warm-up."""
    repetitions = settings["warmup"] + settings["repetitions"]
    return [
        ranks_command(
            "torch_benchmark",
            {**settings, "batch": [workload.batch], "prompt_tokens": [workload.prompt_tokens]},
            f"--repetitions={repetitions}",
            f"--report={OUTPUTS}/{report_name(workload.name, process)}",
        )
        for workload, process in ordered_workloads(settings)
    ]


def resources(cell: Cell) -> Resources:
    """Return the variant's devices, with the node for itself if the job or the target needs that."""
    return rank_resources(cell, bytes_per_parameter=4, is_exclusive=needs_exclusive_node(cell))


def read_reports(settings: Settings, name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the reports of the processes that timed one workload."""
    names = [report_name(name, process) for process in range(settings.get("processes", 1))]
    return [json.loads((folder / OUTPUTS / name).read_text()) for name in names]


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return latencies, rates, memory and load time of each workload, each step timed on its slowest rank."""
    measurements: list[Measurement] = []
    load_times_s: list[float] = []
    for workload in workloads(settings):
        reports = read_reports(settings, workload.name, folder)
        load_times_s += [max(rank["load_s"] for rank in report["ranks"]) for report in reports]
        measurements += _workload_measurements(settings, reports)
    return Outcome((Measurement("load_s", tuple(load_times_s)), *measurements))


def _workload_measurements(settings: Settings, reports: Reports) -> Iterator[Measurement]:
    warmup = settings["warmup"]
    context = {
        **reports[0]["workloads"][0],
        "backend": reports[0]["backend"],
        "threads_per_rank": reports[0]["threads_per_rank"],
        **({"torch": settings["torch"]} if settings.get("torch") else {}),
    }
    processes = [_slowest_rank_generations(report) for report in reports]
    by_rank = {metric: {"ranks": _rank_samples(metric, reports, warmup)} for metric in RATES}
    yield from latency_measurements(processes, warmup, context, by_rank)
    yield from generation_measurements([generations[warmup:] for generations in processes], context)
    if settings.get("torch", {}).get("compile_mode") and warmup:
        yield Measurement("torch_compile_s", tuple(map(_compile_time_s, processes)), context)
    for metric in ("host_memory_bytes", "device_memory_bytes"):
        totals = [float(sum(rank[metric] for rank in report["ranks"])) for report in reports]
        if any(totals):
            yield Measurement(metric, tuple(totals), context)


def _slowest_rank_generations(report: Mapping[str, Any]) -> list[Generation]:
    """Return the generations of one process, with the time of each step on its slowest rank."""
    times_by_rank = [rank["times"][0] for rank in report["ranks"]]
    ttft_ms = [max(prefills) for prefills in zip(*(times["ttft_ms"] for times in times_by_rank), strict=True)]
    generations = zip(*(times["steps_ms"] for times in times_by_rank), strict=True)
    steps_ms = [[max(step) for step in zip(*by_rank, strict=True)] for by_rank in generations]
    return list(map(Generation, ttft_ms, steps_ms, times_by_rank[0].get("begin_s", [0.0] * len(ttft_ms))))


def _compile_time_s(generations: Sequence[Generation]) -> float:
    """Return how much longer the first prefill and decode step of a process took than its last ones."""
    first, last = generations[0], generations[-1]
    steps_ms = first.steps_ms[0] - last.steps_ms[-1] if first.steps_ms else 0.0
    return max(0.0, (first.ttft_ms - last.ttft_ms + steps_ms) / 1e3)


def latency_measurements(
    processes: Sequence[Sequence[Generation]],
    warmup: int,
    workload: Mapping[str, Any],
    extra_context: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Measurement]:
    """Yield TTFT, ITL as the mean of a generation's steps, and their tokens per second.

    `processes` has the generations of each process, warm-up included; `extra_context` is by metric.
    """
    tokens = {"ttft_ms": workload["batch"] * workload["prompt_tokens"], "itl_ms": workload["batch"]}
    for metric, rate in RATES.items():
        times = [_latencies_ms(metric, generations) for generations in processes]
        if not all(times):
            continue  # a single new token has no decode step
        samples = tuple(sample for of_process in times for sample in of_process[warmup:])
        context = {
            **workload,
            "warmup_ms": [sample for of_process in times for sample in of_process[:warmup]],
            "groups": [len(of_process) - warmup for of_process in times],
        }
        yield Measurement(metric, samples, {**context, **(extra_context or {}).get(metric, {})})
        yield Measurement(rate, tuple(tokens[metric] / (sample / 1e3) for sample in samples), context)


def _latencies_ms(metric: str, generations: Sequence[Generation]) -> list[float]:
    if metric == "ttft_ms":
        return [generation.ttft_ms for generation in generations]
    return [fmean(generation.steps_ms) for generation in generations if generation.steps_ms]


def _rank_samples(metric: str, reports: Reports, warmup: int) -> list[dict[str, Any]]:
    """Return each rank's own samples, by which a slow one is found."""
    ranks = []
    for number, rank in enumerate(reports[0]["ranks"]):
        samples: list[float] = []
        for report in reports:
            times = report["ranks"][number]["times"][0]
            generations = list(map(Generation, times["ttft_ms"], times["steps_ms"]))
            samples += _latencies_ms(metric, generations[warmup:])
        ranks.append({**{key: rank[key] for key in ("rank", "host", "device")}, "samples": samples})
    return ranks


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
    count_commands=count_commands,
    figure=latency_figure,
)
