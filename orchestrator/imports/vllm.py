"""What `vllm bench serve`, `latency` and `throughput` write with `--save-result`, `--append-result` or `--output-json`.

Field names are those of vllm/benchmarks/serve.py, latency.py and throughput.py, 0.6 to 0.27.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from db.imports import FoundCell
from jobs.errors import FileError
from jobs.task import Measurement
from jobs.variants import Engine, Variant, variant_name
from orchestrator.imports.found import Entry, FoundFile, Workload, content_of, digest_of_content, entries, numbers_at

DATE = "%Y%m%d-%H%M%S"  #: of `date`, in the zone of the machine that wrote it
MOST_SAMPLES = 10_000  #: of one metric; a run with more gaps between tokens keeps vLLM's own median of them
MILLISECONDS = 1e3

#: What `serve` sums up: its name there, haloctl's, and where the single values are if it was told to keep them.
SUMMARIES = {"ttft": ("ttft_ms", "ttfts"), "itl": ("itl_ms", "itls"), "e2el": ("e2e_ms", "")}
STATISTICS = ("mean", "median", "std", "p99")
#: Statistics that are metrics of their own.
SINGLE = {"mean_itl_ms": "itl_mean_ms", "p99_itl_ms": "itl_p99_ms", "output_throughput": "output_tokens_per_s"}

Found = Mapping[str, Any]


def read(path: Path, model: str, variant: Variant, at: datetime | None, said: Workload) -> FoundFile:
    """The file's measurements, each result a benchmark; `at` is needed where one has no date. Raises FileError.

    With `--append-result` there are several: on a line each, which is not relied on.
    """
    found = entries(path, content_of(path))
    return FoundFile(tuple(_cell(path, one, len(found) > 1, model, variant, at, said) for one in found))


def _cell(
    path: Path, entry: Entry, is_one_of_many: bool, model: str, variant: Variant, at: datetime | None, said: Workload
) -> FoundCell:
    try:
        key = next((key for key in KINDS if key in entry.found), None)
        if key is None:
            what = f"is no result of vllm bench: it has none of the keys {', '.join(KINDS)}"
            raise FileError(str(path), None, "", what)
        return FoundCell(
            model=model,
            variant=_of_vllm(model, variant),
            stage="benchmark",
            at=at or _date(path, entry.found),
            digest=digest_of_content(entry.content, "vllm"),
            measurements=tuple(KINDS[key](path, entry.found, said)),
            line=entry.line if is_one_of_many else None,
        )
    except FileError as error:
        raise FileError(error.file, entry.line if is_one_of_many else None, error.key, error.message) from error


def _of_vllm(model: str, variant: Variant) -> Variant:
    """Whatever its name says, vLLM ran it."""
    made = replace(variant, engine=Engine.VLLM)
    return replace(made, name=variant_name(model, made))


def _date(path: Path, found: Found) -> datetime:
    if "date" not in found:
        raise FileError(str(path), None, "date", "is missing: give --date")
    try:
        return datetime.strptime(found["date"], DATE).astimezone()
    except (TypeError, ValueError) as error:
        raise FileError(str(path), None, "date", f"should be like 20241115-083000, not {found['date']!r}") from error


def _served(path: Path, found: Found, said: Workload) -> Iterator[Measurement]:
    [completed] = numbers_at(path, found, "completed")
    if not completed:
        raise FileError(str(path), None, "completed", "is 0: no request was answered")
    tokens = {
        name: _each(found, key, completed)
        for name, key in (("prompt_tokens", "total_input_tokens"), ("new_tokens", "total_output_tokens"))
    }
    context = said.over({**tokens, "batch": found.get("max_concurrency")})
    about = {name: found[name] for name in ("request_rate", "backend", "model_id", "completed") if name in found}
    for name, (metric, key) in SUMMARIES.items():
        keys = {statistic: f"{statistic}_{name}_ms" for statistic in STATISTICS}
        summary = {statistic: numbers_at(path, found, at)[0] for statistic, at in keys.items() if at in found}
        if samples := _single_values(path, found, key) or ([summary["median"]] if "median" in summary else []):
            yield Measurement(metric, tuple(samples), {**context, "statistics": summary, "vllm": about})
    for key, metric in SINGLE.items():
        if key in found:
            yield Measurement(metric, tuple(numbers_at(path, found, key)), {**context, "vllm": about})


def _each(found: Found, key: str, requests: float) -> int | None:
    """Of each request, where all are the same."""
    total = found.get(key)
    return int(total // requests) if isinstance(total, int) and total % requests == 0 else None


def _single_values(path: Path, found: Found, key: str) -> list[float]:
    """In ms; none where they were not kept, or there are too many. Gaps between tokens are a list for each request."""
    values = found.get(key)
    if not isinstance(values, list):
        return []
    flat = list(chain.from_iterable(one if isinstance(one, list) else [one] for one in values))
    if not flat or len(flat) > MOST_SAMPLES:
        return []
    return [value * MILLISECONDS for value in numbers_at(path, {key: flat}, key)]


def _latencies(path: Path, found: Found, said: Workload) -> Iterator[Measurement]:
    """The time of a whole batch, from its prompts to its last tokens."""
    e2e_ms = tuple(value * MILLISECONDS for value in numbers_at(path, found, "latencies"))
    yield Measurement("e2e_ms", e2e_ms, said.over({}))
    if said.batch and said.new_tokens:
        tokens = said.batch * said.new_tokens
        yield Measurement("output_tokens_per_s", tuple(tokens / (time / 1e3) for time in e2e_ms), said.over({}))


def _throughput(path: Path, found: Found, said: Workload) -> Iterator[Measurement]:
    """Its `tokens_per_second` counts prompts too, which no metric of ours does."""
    if said.new_tokens is None:
        raise FileError(str(path), None, "tokens_per_second", "counts prompts and answers together: give --new-tokens")
    [rate] = numbers_at(path, found, "requests_per_second")
    yield Measurement("output_tokens_per_s", (rate * said.new_tokens,), said.over({}))


#: By the key that only such a file has: of `serve`, `latency` and `throughput`.
KINDS: dict[str, Callable[[Path, Found, Workload], Iterator[Measurement]]] = {
    "request_throughput": _served,
    "latencies": _latencies,
    "requests_per_second": _throughput,
}
