"""What is measured of a stage's processes rather than by them: time, memory, and what the runtime prints of devices."""

from collections.abc import Callable, Iterator, Sequence

from jobs.stages.base import Settings
from jobs.stages.benchmark import Timed, device_memory_bytes, runs
from jobs.stages.torch_benchmark import Workload
from jobs.stages.torch_benchmark import runs as runs_of_workloads
from jobs.task import Measurement, Process
from jobs.variants import Engine

Observed = Sequence[tuple[Process, str]]  #: each process of an attempt with what it printed


def of_compile(settings: Settings, observed: Observed) -> Iterator[Measurement]:
    """How long the compiler took and how much memory at its peak."""
    for process, _ in observed:
        yield Measurement("compile_s", (process.wall_s,))
        yield Measurement("compile_peak_bytes", (float(process.peak_rss_bytes),))


def of_benchmark(settings: Settings, observed: Observed) -> Iterator[Measurement]:
    """The memory that each workload takes: the most that one of the runtime's own processes took for it."""
    workloads: dict[tuple[int, int], list[tuple[Process, str]]] = {}
    for (entry, _), seen in zip(runs(settings), observed, strict=True):
        if isinstance(entry, Timed):
            workloads.setdefault((entry.batch, entry.prompt_tokens), []).append(seen)
    for (batch, prompt_tokens), seen_all in workloads.items():
        context = {"batch": batch, "prompt_tokens": prompt_tokens}
        host = max(process.peak_rss_bytes for process, _ in seen_all)
        yield Measurement("host_memory_bytes", (float(host),), context)
        if device := max(device_memory_bytes(log) or 0 for _, log in seen_all):
            yield Measurement("device_memory_bytes", (float(device),), context)


def of_vllm(settings: Settings, observed: Observed) -> Iterator[Measurement]:
    """The memory of the largest process that each workload has; what vLLM takes for its cache is in it."""
    peaks: dict[Workload, int] = {}
    for (workload, _), (process, _) in zip(runs_of_workloads(settings), observed, strict=True):
        peaks[workload] = max(peaks.get(workload, 0), process.peak_rss_bytes)
    for workload, peak in peaks.items():
        yield Measurement("host_memory_bytes", (float(peak),), workload._asdict())


#: By engine and stage; torch's programs measure themselves, and the other stages have nothing to add.
OBSERVERS: dict[tuple[Engine, str], Callable[[Settings, Observed], Iterator[Measurement]]] = {
    (Engine.IREE, "compile"): of_compile,
    (Engine.IREE, "benchmark"): of_benchmark,
    (Engine.VLLM, "benchmark"): of_vllm,
}


def observed_measurements(stage: str, settings: Settings, observed: Observed) -> tuple[Measurement, ...]:
    """All that a stage's processes are measured by."""
    observer = OBSERVERS.get((Engine(settings.get("engine", Engine.IREE)), stage))
    return tuple(observer(settings, observed)) if observer else ()
