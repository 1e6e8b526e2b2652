"""What is measured of a stage's processes rather than by them: time, memory, and what the runtime prints of devices."""

from collections.abc import Callable, Iterator, Sequence

from jobs.stages.base import Settings
from jobs.stages.benchmark import Timed, device_memory_bytes, timed
from jobs.task import Measurement, Process
from jobs.variants import Engine

Observed = Sequence[tuple[Process, str]]  #: each process of an attempt with what it printed


def of_compile(settings: Settings, observed: Observed) -> Iterator[Measurement]:
    """How long the compiler took and how much memory at its peak."""
    for process, _ in observed:
        yield Measurement("compile_s", (process.wall_s,))
        yield Measurement("compile_peak_bytes", (float(process.peak_rss_bytes),))


def of_benchmark(settings: Settings, observed: Observed) -> Iterator[Measurement]:
    """The memory that each workload takes: the most that a process of it took."""
    workloads: dict[tuple[int, int], list[tuple[Process, str]]] = {}
    for entry, seen in zip(timed(settings), observed, strict=True):
        workloads.setdefault(_workload(entry), []).append(seen)
    for (batch, prompt_tokens), seen_all in workloads.items():
        context = {"batch": batch, "prompt_tokens": prompt_tokens}
        host = max(process.peak_rss_bytes for process, _ in seen_all)
        yield Measurement("host_memory_bytes", (float(host),), context)
        if device := max(device_memory_bytes(log) or 0 for _, log in seen_all):
            yield Measurement("device_memory_bytes", (float(device),), context)


def _workload(entry: Timed) -> tuple[int, int]:
    return entry.batch, entry.prompt_tokens


#: By IREE's stage; programs of other engines measure themselves, and the others have nothing to add.
OBSERVERS: dict[str, Callable[[Settings, Observed], Iterator[Measurement]]] = {
    "compile": of_compile,
    "benchmark": of_benchmark,
}


def observed_measurements(stage: str, settings: Settings, observed: Observed) -> tuple[Measurement, ...]:
    """All that a stage's processes are measured by."""
    observer = OBSERVERS.get(stage) if settings.get("engine", Engine.IREE) == Engine.IREE else None
    return tuple(observer(settings, observed)) if observer else ()
