"""Metrics of whole generations: TTFT, inter-token latency, end-to-end latency and throughput."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any, NamedTuple

from jobs.task import Measurement, Span


class Generation(NamedTuple):
    """One whole generation of a batch: `N` new tokens a row are one prefill and `N - 1` decode steps."""

    ttft_ms: float
    steps_ms: Sequence[float]
    begin_s: float = 0.0  #: Unix time; 0: unknown

    @property
    def e2e_ms(self) -> float:
        """How long all of it took."""
        return self.ttft_ms + sum(self.steps_ms)


GenerationsByProcess = Sequence[Sequence[Generation]]  #: for each process its generations, without its warm-up


def generation_measurements(processes: GenerationsByProcess, workload: Mapping[str, Any]) -> Iterator[Measurement]:
    """Yield the metrics of whole generations; each generation is one sample of each metric.

    `workload` is the measurements' context and has at least `batch`.
    """
    generations = [generation for process in processes for generation in process]
    if not generations:
        return
    context = {**workload, "groups": list(map(len, processes))}
    e2e_ms = [generation.e2e_ms for generation in generations]
    tokens = workload["batch"] * (1 + len(generations[0].steps_ms))
    yield Measurement("generation_ttft_ms", tuple(generation.ttft_ms for generation in generations), context)
    yield Measurement(
        "e2e_ms", tuple(e2e_ms), context, tuple(_span(process, tokens) for process in processes if process)
    )
    yield Measurement("output_tokens_per_s", tuple(tokens / (time_ms / 1e3) for time_ms in e2e_ms), context)
    if all(generation.steps_ms for generation in generations):
        for metric, statistic in STEP_STATISTICS.items():
            yield Measurement(metric, tuple(statistic(generation.steps_ms) for generation in generations), context)


def _span(generations: Sequence[Generation], tokens: int) -> Span:
    last = generations[-1]
    count = len(generations)
    return Span(generations[0].begin_s, last.begin_s + last.e2e_ms / 1e3, count, count * tokens)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that `percent` percent of all values are below, interpolated between neighbours."""
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]


#: Metrics of the decode steps of one generation.
STEP_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "itl_mean_ms": fmean,
    "itl_p50_ms": lambda steps_ms: percentile(steps_ms, 50),
    "itl_p99_ms": lambda steps_ms: percentile(steps_ms, 99),
}
