"""Benchmark: time prefill (TTFT), decode (ITL) and whole generations of compiled programs in fresh processes."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from jobs.contexts import context_for
from jobs.process_order import ProcessOrder, order_processes, report_name
from jobs.runtime_flags import is_runtime_flag
from jobs.stages.base import (
    INPUTS,
    OUTPUTS,
    Cell,
    Observed,
    Settings,
    Stage,
    device_count,
    device_resources,
    latency_figure,
    memory_for,
    needs_exclusive_node,
    parallelism_settings,
    program,
)
from jobs.stages.generation_metrics import Generation, generation_measurements
from jobs.stages.invoke import PROGRAM_FLAGS
from jobs.targets import device_flags
from jobs.task import Command, Measurement, Outcome, Process, Resources, Span
from jobs.toolchains import Toolchain
from jobs.variants import KvCache

SAMPLE_TIME_S = 0.1  #: one sample is the mean of as many calls as fit in this
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
TOKEN = 5  #: every input token; the time does not depend on it


class TimedCall(NamedTuple):
    """One entry point with the inputs of one workload, which a process times."""

    name: str
    batch: int
    prompt_tokens: int
    metric: str
    function: str
    inputs: tuple[str, ...]
    tokens: int  #: processed in one call


class TimedGeneration(NamedTuple):
    """One workload of which a process times whole generations."""

    name: str
    batch: int
    prompt_tokens: int


CallFlags = Callable[[Mapping[str, Any], TimedCall], Iterable[str]]


def sampling_settings(cell: Cell) -> dict[str, Any]:
    """Return how often and in which order workloads are timed, and how often disturbed runs are repeated."""
    benchmark = cell.spec.benchmark
    return {
        "warmup": benchmark.warmup,
        "repetitions": benchmark.repetitions,
        "processes": benchmark.processes,
        "order": benchmark.order.value,
        "max_disturbed_reruns": benchmark.max_disturbed_reruns,
    }


def settings(cell: Cell) -> dict[str, Any]:
    """Return the workload and how often each entry point runs."""
    workload = cell.spec.workload
    return {
        "target": cell.variant.target,
        **parallelism_settings(cell.variant),
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "new_tokens": workload.new_tokens,
        "generations": cell.spec.benchmark.generations,
        **sampling_settings(cell),
        **runtime_settings(cell),
        **({"kv_block_tokens": workload.kv_block_tokens} if cell.variant.kv_cache is KvCache.PAGED else {}),
    }


def runtime_settings(cell: Cell) -> dict[str, list[str]]:
    """Return the runtime's flags of the job and of the variant's named set, if there are any."""
    flags = [*cell.spec.benchmark.flags, *filter(is_runtime_flag, cell.flags)]
    return {"flags": flags} if flags else {}


def batches_of(settings: Settings, kind: str) -> list[int]:
    """Return the batch sizes of prefills (`bs_prefill`) or decode steps (`bs_decode`)."""
    batches: list[int] = settings.get(kind, settings["batch"])
    return batches


def timed_calls(settings: Settings) -> Iterator[TimedCall]:
    """Yield every entry point to time; a decode step is timed at the first position after its prompt.

    It is that of the smallest context that holds the whole generation.
    """
    prefills, decodes = batches_of(settings, "bs_prefill"), batches_of(settings, "bs_decode")
    for batch, prompt in product(sorted({*prefills, *decodes}), settings["prompt_tokens"]):
        context = context_for(prompt + settings["new_tokens"], settings.get("kv_block_tokens"))
        if batch in prefills:
            yield TimedCall(
                f"prefill_bs{batch}_t{prompt}", batch, prompt, "ttft_ms", f"prefill_bs{batch}_t{prompt}",
                (f"{batch}x{prompt}xi64={TOKEN}", f"{batch}xi64={prompt}", *_table(settings, batch)), batch * prompt,
            )  # fmt: skip
        if batch in decodes:
            yield TimedCall(
                f"decode_bs{batch}_t{prompt}", batch, prompt, "itl_ms", f"decode_bs{batch}_c{context}",
                (f"{batch}x1xi64={TOKEN}", f"{batch}xi64={prompt}", *_table(settings, batch, f"_c{context}")), batch,
            )  # fmt: skip


def _table(settings: Settings, batch: int, context: str = "") -> list[str]:
    """Return the file with the block table of a function, where the cache is paged."""
    return [f"@{INPUTS}/export/block_table_bs{batch}{context}.npy"] if "kv_block_tokens" in settings else []


def timed_generations(settings: Settings) -> Iterator[TimedGeneration]:
    """Yield every workload of which whole generations are timed; none if the job wants no generations."""
    batches = [batch for batch in batches_of(settings, "bs_prefill") if batch in batches_of(settings, "bs_decode")]
    for batch, prompt in product(batches, settings["prompt_tokens"]) if settings.get("generations") else ():
        yield TimedGeneration(f"generation_bs{batch}_t{prompt}", batch, prompt)


def ordered_entries(settings: Settings) -> list[tuple[TimedCall | TimedGeneration, int]]:
    """Return what each process times, with its number among the processes that time the same, as they run."""
    entries: list[TimedCall | TimedGeneration] = [*timed_calls(settings), *timed_generations(settings)]
    return order_processes(
        entries, settings.get("processes", 1), ProcessOrder(settings.get("order", ProcessOrder.SEQUENTIAL))
    )


def count_commands(settings: Settings) -> int:
    """Return how many commands there are: a prefill, a decode step and perhaps generations of each workload."""
    entries = len(list(timed_calls(settings))) + len(list(timed_generations(settings)))
    return entries * int(settings.get("processes", 1))


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return a command for each process; its first repetitions are warm-up."""
    return commands_with_flags(settings, _call_flags)


def commands_with_flags(settings: Settings, call_flags: CallFlags) -> list[Command]:
    """Return the commands, where `call_flags` returns the flags with the parameters and inputs of one call."""
    return [
        _time_call(settings, entry, process, call_flags)
        if isinstance(entry, TimedCall)
        else _time_generation(settings, entry, process)
        for entry, process in ordered_entries(settings)
    ]


def _call_flags(settings: Settings, entry: TimedCall) -> list[str]:
    return [
        *(f"--parameters=model={INPUTS}/export/model.rank{rank}.irpa" for rank in range(settings["tp"])),
        f"--function={entry.function}",
        *(f"--input={text}" for text in entry.inputs),
    ]


def _time_call(settings: Settings, entry: TimedCall, process: int, call_flags: CallFlags) -> Command:
    return Command(
        (
            "iree-benchmark-module",
            f"--module={INPUTS}/compile/model.vmfb",
            *device_flags(settings["target"], device_count(settings)),
            *settings.get("flags", ()),
            *call_flags(settings, entry),
            *timing_flags(settings["warmup"] + settings["repetitions"], report_name(entry.name, process)),
        )
    )


def timing_flags(repetitions: int, report: str) -> list[str]:
    """Return the flags that let iree-benchmark-module time a call and write a report to outputs/."""
    return [
        f"--benchmark_repetitions={repetitions}",
        f"--benchmark_min_time={SAMPLE_TIME_S}s",
        "--print_statistics=true",
        "--benchmark_out_format=json",
        f"--benchmark_out={OUTPUTS}/{report}",
    ]


def _time_generation(settings: Settings, entry: TimedGeneration, process: int) -> Command:
    return program(
        "generate",
        *PROGRAM_FLAGS,
        *device_flags(settings["target"], device_count(settings)),
        *(f"--runtime-flag={flag}" for flag in settings.get("flags", ())),
        f"--batch={entry.batch}",
        f"--prompt-tokens={entry.prompt_tokens}",
        f"--new-tokens={settings['new_tokens']}",
        f"--repetitions={settings['warmup'] + settings['generations']}",
        f"--report={OUTPUTS}/{report_name(entry.name, process)}",
    )


def resources(cell: Cell) -> Resources:
    """Return the variant's devices, with the node for itself if the job or the target needs that."""
    return device_resources(cell, memory_bytes=memory_for(cell, 4), is_exclusive=needs_exclusive_node(cell))


def samples_ms(report: Mapping[str, Any]) -> list[float]:
    """Return the time of one call in each repetition of a benchmark's JSON, in the order in which they ran."""
    return [run["real_time"] * MILLISECONDS[run["time_unit"]] for run in _repetitions(report)]


def _repetitions(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    runs = [run for run in report["benchmarks"] if run.get("run_type") == "iteration"]
    return sorted(runs, key=lambda run: run.get("repetition_index", 0))


def counted_span(report: Mapping[str, Any], warmup: int, tokens: int, end_s: float) -> Span:
    """Return the time of all repetitions after the warm-up, which ended when the report was written."""
    calls = [run.get("iterations", 1) for run in _repetitions(report)[warmup:]]
    times_ms = samples_ms(report)[warmup:]
    duration_ms = sum(time_ms * count for time_ms, count in zip(times_ms, calls, strict=True))
    return Span(end_s - duration_ms / 1e3, end_s, sum(calls), sum(calls) * tokens)


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return TTFT or ITL of each entry point with its tokens per second, and the metrics of whole generations.

    Samples of all processes follow one another; `groups` in their context has the number of each process.
    """
    measurements: list[Measurement] = []
    for call in timed_calls(settings):
        reports = read_reports(settings, call.name, folder)
        ends_s = [file.stat().st_mtime for file in _report_files(settings, call.name, folder)]
        spans = [
            counted_span(report, settings["warmup"], call.tokens, end_s)
            for report, end_s in zip(reports, ends_s, strict=True)
        ]
        measurements += _call_measurements(settings, call, list(map(samples_ms, reports)), tuple(spans))
    for entry in timed_generations(settings):
        processes = [
            [Generation(**times) for times in report["generations"][settings["warmup"] :]]
            for report in read_reports(settings, entry.name, folder)
        ]
        workload = {"batch": entry.batch, "prompt_tokens": entry.prompt_tokens, "new_tokens": settings["new_tokens"]}
        measurements += generation_measurements(processes, workload)
    return Outcome(tuple(measurements))


def read_reports(settings: Settings, name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the reports of the processes that timed an entry."""
    return [json.loads(file.read_text()) for file in _report_files(settings, name, folder)]


def _report_files(settings: Settings, name: str, folder: Path) -> list[Path]:
    return [folder / OUTPUTS / report_name(name, process) for process in range(settings.get("processes", 1))]


def _call_measurements(
    settings: Settings, entry: TimedCall, times: list[list[float]], spans: tuple[Span, ...]
) -> Iterator[Measurement]:
    warmup = settings["warmup"]
    samples = tuple(sample for of_process in times for sample in of_process[warmup:])
    context = {
        "batch": entry.batch,
        "prompt_tokens": entry.prompt_tokens,
        "new_tokens": settings["new_tokens"],  # as for other engines; the program's cache has room for them
        "warmup_ms": [sample for of_process in times for sample in of_process[:warmup]],
        "groups": [len(of_process) - warmup for of_process in times],
    }
    rate = "prefill_tokens_per_s" if entry.metric == "ttft_ms" else "decode_tokens_per_s"
    yield Measurement(entry.metric, samples, context, spans)
    yield Measurement(rate, tuple(entry.tokens / (sample / 1e3) for sample in samples), context)


PEAK = re.compile(r"DEVICE_LOCAL:\s*(\d+)B peak")


def device_memory_bytes(log: str) -> int | None:
    """Return the peak of the devices' memory in the runtime's statistics; None if the log has none."""
    return max(map(int, PEAK.findall(log)), default=0) or None


def observe(settings: Settings, observed: Observed) -> Iterator[Measurement]:
    """Yield the memory of each workload: the most that a process of iree-benchmark-module took for it."""
    by_workload: dict[tuple[int, int], list[tuple[Process, str]]] = {}
    for (entry, _), process_with_log in zip(ordered_entries(settings), observed, strict=True):
        if isinstance(entry, TimedCall):
            by_workload.setdefault((entry.batch, entry.prompt_tokens), []).append(process_with_log)
    for (batch, prompt_tokens), processes in by_workload.items():
        context = {"batch": batch, "prompt_tokens": prompt_tokens}
        host_bytes = max(process.peak_rss_bytes for process, _ in processes)
        yield Measurement("host_memory_bytes", (float(host_bytes),), context)
        if device_bytes := max(device_memory_bytes(log) or 0 for _, log in processes):
            yield Measurement("device_memory_bytes", (float(device_bytes),), context)


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
    observe=observe,
    count_commands=count_commands,
    figure=latency_figure,
)
