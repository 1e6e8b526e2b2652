"""Benchmark of the torch engine: prefill (TTFT) and decode (ITL) timed on every rank; a step is as slow as its last."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jobs.stages.base import Cell, Settings, Stage, report, wants_quiet
from jobs.stages.torch_ranks import on_nodes, ranks, settings_of
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain

RATES = {"ttft_ms": "prefill_tokens_per_s", "itl_ms": "decode_tokens_per_s"}


def settings(cell: Cell) -> dict[str, Any]:
    """The split, the workload, and how often it is repeated."""
    benchmark = cell.spec.benchmark
    return {**settings_of(cell), "warmup": benchmark.warmup, "repetitions": benchmark.repetitions}


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """One program for all workloads; warm-up repetitions come first and are told apart when they are read."""
    rounds = settings["warmup"] + settings["repetitions"]
    return [ranks("torch_benchmark", settings, f"--repetitions={rounds}")]


def resources(cell: Cell) -> Resources:
    """The variant's devices; the node to itself where that is asked for, or devices are the host's own cores."""
    return on_nodes(cell, bytes_per_parameter=4, is_quiet=wants_quiet(cell))


def parse(settings: Settings, folder: Path) -> Outcome:
    """TTFT and ITL of each workload by its slowest rank in each repetition, with those of every rank; and memory."""
    found = report(folder, "benchmark.json")
    measurements = [Measurement("load_s", (max(rank["load_s"] for rank in found["ranks"]),))]
    for number, workload in enumerate(found["workloads"]):
        measurements += _times(settings, found, number, workload)
        measurements += _memory(found, workload)
    return Outcome(tuple(measurements))


def _times(
    settings: Settings, found: Mapping[str, Any], number: int, workload: Mapping[str, Any]
) -> Iterator[Measurement]:
    about = {**workload, "backend": found["backend"], "threads_per_rank": found["threads_per_rank"]}
    tokens = {"ttft_ms": workload["batch"] * workload["prompt_tokens"], "itl_ms": workload["batch"]}
    warmup = settings["warmup"]
    for metric, rate in RATES.items():
        times = [rank["times"][number][metric] for rank in found["ranks"]]
        slowest = [max(of_round) for of_round in zip(*times, strict=True)]
        ranks = [
            {"rank": rank["rank"], "host": rank["host"], "device": rank["device"], "samples": own[warmup:]}
            for rank, own in zip(found["ranks"], times, strict=True)
        ]
        context = {**about, "warmup_ms": slowest[:warmup], "ranks": ranks}
        samples = tuple(slowest[warmup:])
        yield Measurement(metric, samples, context)
        yield Measurement(rate, tuple(tokens[metric] / (sample / 1e3) for sample in samples), about)


def _memory(found: Mapping[str, Any], workload: Mapping[str, Any]) -> Iterator[Measurement]:
    for metric in ("host_memory_bytes", "device_memory_bytes"):
        total = sum(rank[metric] for rank in found["ranks"])
        if total:
            yield Measurement(metric, (float(total),), workload)


TORCH_BENCHMARK = Stage(
    name="benchmark",
    title="benchmark",
    needs=(),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={"benchmark.json": "report"},
    is_measured=True,
    needs_weights=True,
)
