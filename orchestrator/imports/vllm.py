"""Imports results of `vllm bench serve`, `latency` and `throughput`: their `--save-result`, `--append-result` and
`--output-json` files.

Field names are those of vllm/benchmarks/serve.py, latency.py and throughput.py, 0.6 to 0.27.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from db.writes.imports import ImportedCell
from jobs.errors import FileError
from jobs.task import Measurement
from jobs.variants import Variant, variant_name
from orchestrator.imports.imported_file import (
    ImportedFile,
    JsonObject,
    KnownWorkload,
    digest_of_content,
    number_at,
    numbers_at,
    parse_objects,
    read_file,
)

DATE = "%Y%m%d-%H%M%S"  #: of `date`, in the zone of the machine that wrote it
MAX_SAMPLES = 10_000  #: of one metric; of a run with more gaps between tokens, vLLM's own median is imported
MILLISECONDS = 1e3

#: The summaries of `serve`: vLLM's name, haloctl's metric, and the key of the single values, which are optional.
SUMMARIES = {"ttft": ("ttft_ms", "ttfts"), "itl": ("itl_ms", "itls"), "e2el": ("e2e_ms", "")}
STATISTICS = ("mean", "median", "std", "p99")
#: Statistics that are metrics of their own.
SINGLE = {"mean_itl_ms": "itl_mean_ms", "p99_itl_ms": "itl_p99_ms", "output_throughput": "output_tokens_per_s"}

Fields = Mapping[str, Any]


def read(path: Path, model: str, variant: Variant, at: datetime | None, known: KnownWorkload) -> ImportedFile:
    """Read a file's results, each as a benchmark; `at` is needed if one has no date. Raises FileError.

    With `--append-result` there are several: usually on a line each, which is not relied on.
    """
    objects = parse_objects(path, read_file(path))
    has_several = len(objects) > 1
    return ImportedFile(tuple(_cell(path, result, has_several, model, variant, at, known) for result in objects))


def _cell(
    path: Path,
    result: JsonObject,
    has_several: bool,
    model: str,
    variant: Variant,
    at: datetime | None,
    known: KnownWorkload,
) -> ImportedCell:
    """Import one result; errors name its line where the file has several."""
    line = result.line if has_several else None
    try:
        key = next((key for key in KINDS if key in result.fields), None)
        if key is None:
            raise FileError(
                str(path), None, "", f"is no result of vllm bench: it has none of the keys {', '.join(KINDS)}"
            )
        by_vllm = replace(variant, engine="vllm")  # whatever its name says
        return ImportedCell(
            model=model,
            variant=replace(by_vllm, name=variant_name(model, by_vllm)),
            stage="benchmark",
            at=at or _date(path, result.fields),
            digest=digest_of_content(result.content, "vllm"),
            measurements=tuple(KINDS[key](path, result.fields, known)),
            line=line,
        )
    except FileError as error:
        raise FileError(error.file, line, error.key, error.message) from error


def _date(path: Path, fields: Fields) -> datetime:
    if "date" not in fields:
        raise FileError(str(path), None, "date", "is missing; give --date")
    try:
        return datetime.strptime(fields["date"], DATE).astimezone()
    except (TypeError, ValueError, OverflowError) as error:
        raise FileError(
            str(path), None, "date", f"should be like 20241115-083000, not {str(fields['date'])[:40]!r}"
        ) from error


def _serve(path: Path, fields: Fields, known: KnownWorkload) -> Iterator[Measurement]:
    completed = number_at(path, fields, "completed")
    if completed < 1:
        raise FileError(str(path), None, "completed", f"is {completed:g}: no request was answered")
    tokens = {
        "prompt_tokens": _per_request(fields, "total_input_tokens", completed),
        "new_tokens": _per_request(fields, "total_output_tokens", completed),
    }
    context = known.as_context({**tokens, "batch": fields.get("max_concurrency")})
    about = {name: fields[name] for name in ("request_rate", "backend", "model_id", "completed") if name in fields}
    for name, (metric, values_key) in SUMMARIES.items():
        keys = {statistic: f"{statistic}_{name}_ms" for statistic in STATISTICS}
        summary = {statistic: number_at(path, fields, key) for statistic, key in keys.items() if key in fields}
        median = [summary["median"]] if "median" in summary else []
        if samples := _values_ms(path, fields, values_key) or median:
            yield Measurement(metric, tuple(samples), {**context, "statistics": summary, "vllm": about})
    for key, metric in SINGLE.items():
        if key in fields:
            yield Measurement(metric, (number_at(path, fields, key),), {**context, "vllm": about})


def _per_request(fields: Fields, key: str, requests: float) -> int | None:
    """Return a total for each request; None where they can't all be the same."""
    total = fields.get(key)
    return int(total // requests) if isinstance(total, int) and total % requests == 0 else None


def _values_ms(path: Path, fields: Fields, key: str) -> list[float]:
    """Return single values; empty where the file has none, or more than MAX_SAMPLES.

    Gaps between tokens are a list for each request.
    """
    values = fields.get(key)
    if not isinstance(values, list):
        return []
    flat = list(chain.from_iterable(value if isinstance(value, list) else [value] for value in values))
    if not flat or len(flat) > MAX_SAMPLES:
        return []
    return [value * MILLISECONDS for value in numbers_at(path, {key: flat}, key)]


def _latency(path: Path, fields: Fields, known: KnownWorkload) -> Iterator[Measurement]:
    """Import the time of a whole batch, from its prompts to its last tokens."""
    e2e_ms = tuple(value * MILLISECONDS for value in numbers_at(path, fields, "latencies"))
    if min(e2e_ms) <= 0:
        raise FileError(str(path), None, "latencies", "should be above 0")
    yield Measurement("e2e_ms", e2e_ms, known.as_context({}))
    if known.batch and known.new_tokens:
        tokens = known.batch * known.new_tokens
        yield Measurement("output_tokens_per_s", tuple(tokens / (time / 1e3) for time in e2e_ms), known.as_context({}))


def _throughput(path: Path, fields: Fields, known: KnownWorkload) -> Iterator[Measurement]:
    """Import the rate of requests: `tokens_per_second` counts prompts too, which no metric of ours does."""
    if known.new_tokens is None:
        raise FileError(str(path), None, "tokens_per_second", "counts prompts and answers together; give --new-tokens")
    rate = number_at(path, fields, "requests_per_second")
    yield Measurement("output_tokens_per_s", (rate * known.new_tokens,), known.as_context({}))


#: By the key that only such a file has: of `serve`, `latency` and `throughput`.
KINDS: dict[str, Callable[[Path, Fields, KnownWorkload], Iterator[Measurement]]] = {
    "request_throughput": _serve,
    "latencies": _latency,
    "requests_per_second": _throughput,
}
