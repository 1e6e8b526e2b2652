"""Benchmark: prefill (TTFT), decode (ITL) and whole generations of compiled programs, each in fresh processes."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from jobs.benchmarks import Generation, Order, file_name, in_order, measurements_of
from jobs.stages.base import (
    INPUTS,
    OUTPUTS,
    Cell,
    Settings,
    Stage,
    devices_of,
    memory_for,
    on_devices,
    parallelism,
    program,
    wants_quiet,
)
from jobs.stages.invoke import PROGRAM_FLAGS
from jobs.targets import device_flags
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import KvCache

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


class Whole(NamedTuple):
    """One workload of which whole generations are timed."""

    name: str
    batch: int
    prompt_tokens: int


def how_often(cell: Cell) -> dict[str, Any]:
    """How often what is timed, in which order, and what is done about disturbed runs: the same for all engines."""
    benchmark = cell.spec.benchmark
    return {
        "warmup": benchmark.warmup,
        "repetitions": benchmark.repetitions,
        "processes": benchmark.processes,
        "order": benchmark.order.value,
        "max_disturbed_reruns": benchmark.max_disturbed_reruns,
    }


def settings(cell: Cell) -> dict[str, Any]:
    """The workload and how often each entry point runs."""
    workload = cell.spec.workload
    return {
        "target": cell.variant.target,
        **parallelism(cell.variant),
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "new_tokens": workload.new_tokens,
        "generations": cell.spec.benchmark.generations,
        **how_often(cell),
        **({"kv_cache": KvCache.PAGED.value} if cell.variant.kv_cache is KvCache.PAGED else {}),
    }


def timed(settings: Settings) -> Iterator[Timed]:
    """Every entry point to be timed: a decode step is timed at the first position after its prompt."""
    is_paged = settings.get("kv_cache") == KvCache.PAGED
    for batch, prompt in product(settings["batch"], settings["prompt_tokens"]):
        table = (f"@{INPUTS}/export/block_table_bs{batch}.npy",) if is_paged else ()
        yield Timed(
            f"prefill_bs{batch}_t{prompt}", batch, prompt, "ttft_ms", f"prefill_bs{batch}_t{prompt}",
            (f"{batch}x{prompt}xi64={TOKEN}", f"{batch}xi64={prompt}", *table), batch * prompt,
        )  # fmt: skip
        yield Timed(
            f"decode_bs{batch}_t{prompt}", batch, prompt, "itl_ms", f"decode_bs{batch}",
            (f"{batch}x1xi64={TOKEN}", f"{batch}xi64={prompt}", *table), batch,
        )  # fmt: skip


def generated(settings: Settings) -> Iterator[Whole]:
    """Every workload of which whole generations are timed; none where the job asks for no generations."""
    for batch, prompt in product(settings["batch"], settings["prompt_tokens"]) if settings.get("generations") else ():
        yield Whole(f"generation_bs{batch}_t{prompt}", batch, prompt)


def runs(settings: Settings) -> list[tuple[Timed | Whole, int]]:
    """What each process times, with its number among those that time the same, in the order in which they run."""
    entries: list[Timed | Whole] = [*timed(settings), *generated(settings)]
    return in_order(entries, settings.get("processes", 1), Order(settings.get("order", Order.SEQUENTIAL)))


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Each a fresh process; warm-up repetitions come first and are told apart when they are read."""
    return commands_calling(settings, _call)


def commands_calling(settings: Settings, call: Callable[[Settings, Timed], Iterable[str]]) -> list[Command]:
    """The commands of a program whose parameters and inputs the flags of `call` give."""
    return [
        _timing(settings, entry, process, call) if isinstance(entry, Timed) else _generating(settings, entry, process)
        for entry, process in runs(settings)
    ]


def _call(settings: Settings, entry: Timed) -> list[str]:
    return [
        *(f"--parameters=model={INPUTS}/export/model.rank{rank}.irpa" for rank in range(settings["tp"])),
        f"--function={entry.function}",
        *(f"--input={text}" for text in entry.inputs),
    ]


def _timing(
    settings: Settings, entry: Timed, process: int, call: Callable[[Settings, Timed], Iterable[str]]
) -> Command:
    return Command(
        (
            "iree-benchmark-module",
            f"--module={INPUTS}/compile/model.vmfb",
            *device_flags(settings["target"], devices_of(settings)),
            *call(settings, entry),
            f"--benchmark_repetitions={settings['warmup'] + settings['repetitions']}",
            f"--benchmark_min_time={SAMPLE_TIME_S}s",
            "--print_statistics=true",
            "--benchmark_out_format=json",
            f"--benchmark_out={OUTPUTS}/{file_name(entry.name, process)}",
        )
    )


def _generating(settings: Settings, entry: Whole, process: int) -> Command:
    return program(
        "generate",
        *PROGRAM_FLAGS,
        *device_flags(settings["target"], devices_of(settings)),
        f"--batch={entry.batch}",
        f"--prompt-tokens={entry.prompt_tokens}",
        f"--new-tokens={settings['new_tokens']}",
        f"--repetitions={settings['warmup'] + settings['generations']}",
        f"--report={OUTPUTS}/{file_name(entry.name, process)}",
    )


def resources(cell: Cell) -> Resources:
    """The variant's devices; the node to itself where that is asked for, or devices are the host's own cores."""
    return on_devices(cell, memory_bytes=memory_for(cell, 4), is_quiet=wants_quiet(cell))


def samples_ms(found: Mapping[str, Any]) -> list[float]:
    """The time of one call in each repetition of a benchmark's JSON, in the order in which they ran."""
    runs = [run for run in found["benchmarks"] if run.get("run_type") == "iteration"]
    runs.sort(key=lambda run: run.get("repetition_index", 0))
    return [run["real_time"] * MILLISECONDS[run["time_unit"]] for run in runs]


def parse(settings: Settings, folder: Path) -> Outcome:
    """TTFT or ITL of each entry point with the tokens per second that follow, and what whole generations come to.

    Samples are those of all processes, one after another; `groups` in their context says how many each has.
    """
    measurements: list[Measurement] = []
    for entry in timed(settings):
        measurements += _times(settings, entry, [samples_ms(found) for found in _reports(settings, entry.name, folder)])
    for whole in generated(settings):
        groups = [
            [Generation(one["ttft_ms"], one["steps_ms"]) for one in found["generations"][settings["warmup"] :]]
            for found in _reports(settings, whole.name, folder)
        ]
        about = {"batch": whole.batch, "prompt_tokens": whole.prompt_tokens, "new_tokens": settings["new_tokens"]}
        measurements += measurements_of(groups, about)
    return Outcome(tuple(measurements))


def _reports(settings: Settings, name: str, folder: Path) -> list[dict[str, Any]]:
    files = [folder / OUTPUTS / file_name(name, process) for process in range(settings.get("processes", 1))]
    return [json.loads(file.read_text()) for file in files]


def _times(settings: Settings, entry: Timed, times: list[list[float]]) -> Iterator[Measurement]:
    warmup = settings["warmup"]
    samples = tuple(sample for of_process in times for sample in of_process[warmup:])
    context = {
        "batch": entry.batch,
        "prompt_tokens": entry.prompt_tokens,
        "new_tokens": settings["new_tokens"],  # as of other engines; the program's cache has room for them
        "warmup_ms": [sample for of_process in times for sample in of_process[:warmup]],
        "groups": [len(of_process) - warmup for of_process in times],
    }
    rate = "prefill_tokens_per_s" if entry.metric == "ttft_ms" else "decode_tokens_per_s"
    yield Measurement(entry.metric, samples, context)
    yield Measurement(rate, tuple(entry.tokens / (sample / 1e3) for sample in samples), context)


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
)
