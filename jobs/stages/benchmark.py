"""Benchmark: iree-benchmark-module times prefill (TTFT) and decode (ITL), each in a fresh process."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from jobs.stages.base import INPUTS, OUTPUTS, Cell, Settings, Stage, memory_for, on_devices, wants_quiet
from jobs.targets import device_flags
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain

SAMPLE_TIME_S = 0.1  #: one sample is the mean of as many calls as fit in this
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
TOKEN = 5  #: every input token: time does not depend on which


class Timed(NamedTuple):
    """One entry point of one workload, which one process times."""

    name: str
    batch: int
    prompt_tokens: int
    metric: str
    function: str
    inputs: tuple[str, ...]
    tokens: int  #: processed in one call


def settings(cell: Cell) -> dict[str, Any]:
    """The workload and how often each entry point runs."""
    workload, benchmark = cell.spec.workload, cell.spec.benchmark
    return {
        "target": cell.variant.target,
        "tp": cell.variant.tp,
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "warmup": benchmark.warmup,
        "repetitions": benchmark.repetitions,
    }


def timed(settings: Settings) -> Iterator[Timed]:
    """Every entry point to be timed: a decode step is timed at the first position after its prompt."""
    for batch, prompt in product(settings["batch"], settings["prompt_tokens"]):
        yield Timed(
            f"prefill_bs{batch}_t{prompt}", batch, prompt, "ttft_ms", f"prefill_bs{batch}_t{prompt}",
            (f"{batch}x{prompt}xi64={TOKEN}", f"{batch}xi64={prompt}"), batch * prompt,
        )  # fmt: skip
        yield Timed(
            f"decode_bs{batch}_t{prompt}", batch, prompt, "itl_ms", f"decode_bs{batch}",
            (f"{batch}x1xi64={TOKEN}", f"{batch}xi64={prompt}"), batch,
        )  # fmt: skip


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """One process an entry point; warm-up repetitions come first and are told apart when they are read."""
    return [
        Command(
            (
                "iree-benchmark-module",
                f"--module={INPUTS}/compile/model.vmfb",
                *device_flags(settings["target"], settings["tp"]),
                *(f"--parameters=model={INPUTS}/export/model.rank{rank}.irpa" for rank in range(settings["tp"])),
                f"--function={entry.function}",
                *(f"--input={text}" for text in entry.inputs),
                f"--benchmark_repetitions={settings['warmup'] + settings['repetitions']}",
                f"--benchmark_min_time={SAMPLE_TIME_S}s",
                "--print_statistics=true",
                "--benchmark_out_format=json",
                f"--benchmark_out={OUTPUTS}/{entry.name}.json",
            )
        )
        for entry in timed(settings)
    ]


def resources(cell: Cell) -> Resources:
    """The variant's devices; the node to itself where that is asked for, or devices are the host's own cores."""
    return on_devices(cell, memory_bytes=memory_for(cell, 4), is_quiet=wants_quiet(cell))


def samples_ms(found: Mapping[str, Any]) -> list[float]:
    """The time of one call in each repetition of a benchmark's JSON, in the order in which they ran."""
    runs = [run for run in found["benchmarks"] if run.get("run_type") == "iteration"]
    runs.sort(key=lambda run: run.get("repetition_index", 0))
    return [run["real_time"] * MILLISECONDS[run["time_unit"]] for run in runs]


def parse(settings: Settings, folder: Path) -> Outcome:
    """TTFT or ITL of each entry point, and the tokens per second that follow."""
    measurements = []
    for entry in timed(settings):
        times = samples_ms(json.loads((folder / OUTPUTS / f"{entry.name}.json").read_text()))
        warmup, samples = times[: settings["warmup"]], times[settings["warmup"] :]
        context = {"batch": entry.batch, "prompt_tokens": entry.prompt_tokens, "warmup_ms": warmup}
        rate = "prefill_tokens_per_s" if entry.metric == "ttft_ms" else "decode_tokens_per_s"
        measurements += [
            Measurement(entry.metric, tuple(samples), context),
            Measurement(rate, tuple(entry.tokens / (sample / 1e3) for sample in samples), context),
        ]
    return Outcome(tuple(measurements))


PEAK = re.compile(r"DEVICE_LOCAL:\s*(\d+)B peak")


def device_memory_bytes(log: str) -> int | None:
    """The peak that the runtime's statistics tell of the devices' memory; None where it tells none."""
    found = [int(peak) for peak in PEAK.findall(log)]
    return max(found) or None if found else None


BENCHMARK = Stage(
    name="benchmark",
    title="benchmark",
    needs=("export", "compile"),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={".json": "report"},
    is_measured=True,
    needs_weights=True,
    has_program=False,
)
