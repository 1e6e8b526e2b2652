"""Imports what `iree-benchmark-module --benchmark_format=json` writes."""

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from db.writes.imports import ImportedCell
from jobs.errors import FileError
from jobs.stages.benchmark import MILLISECONDS
from jobs.task import Measurement
from jobs.variants import Variant
from orchestrator.imports.imported_file import (
    ImportedFile,
    KnownWorkload,
    digest_of_content,
    is_number,
    parse_object,
    read_file,
)

#: The name of an entry point: `prefill_bs4_t2048` and `decode_bs4_c2080` in haloctl's programs, `prefill_bs4` in
#: sharktank's.
FUNCTION = re.compile(r"(?:BM_)?(prefill|decode)(?:_bs(\d{1,9}))?(?:_t(\d{1,9}))?(?:_c\d{1,9})?\b.*")
METRICS = {"prefill": "ttft_ms", "decode": "itl_ms"}


def read(path: Path, model: str, variant: Variant, at: datetime | None, known: KnownWorkload) -> ImportedFile:
    """Read the times of prefill and decode as a benchmark; `at` is needed if the file has no date. Raises FileError."""
    content = read_file(path)
    report = parse_object(path, content)
    runs = report.get("benchmarks")
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise FileError(
            str(path), None, "benchmarks", "should be a list of objects, as iree-benchmark-module writes it"
        )
    times: dict[tuple[str, int | None, int | None], list[tuple[int, float]]] = defaultdict(list)
    skipped = []
    for number, run in enumerate(runs):
        if "aggregate_name" in run or run.get("run_type") == "aggregate":
            continue
        name = FUNCTION.fullmatch(str(run.get("name", "")))
        if name is None:
            skipped.append(f"benchmarks[{number}]: {run.get('name')!r} is neither prefill nor decode")
            continue
        batch, prompt = (int(size) if size else None for size in name.groups()[1:])
        repetition = run.get("repetition_index")
        order = repetition if isinstance(repetition, int) else number
        times[METRICS[name[1]], batch, prompt].append((order, _time_ms(path, number, run)))
    if not times:
        raise FileError(
            str(path),
            None,
            "benchmarks",
            "has no single run of prefill or decode; aggregates such as mean and median do not count",
        )
    context = report.get("context") if isinstance(report.get("context"), dict) else {}
    measurements = tuple(
        Measurement(
            metric,
            tuple(time for _, time in sorted(runs)),
            {**known.as_context({"batch": batch, "prompt_tokens": prompt}), "iree": context},
        )
        for (metric, batch, prompt), runs in times.items()
    )
    cell = ImportedCell(
        model=model,
        variant=variant,
        stage="benchmark",
        at=at or _date(path, context or {}),
        digest=digest_of_content(content, "iree"),
        measurements=measurements,
    )
    return ImportedFile((cell,), tuple(skipped))


def _time_ms(path: Path, number: int, run: Mapping[str, Any]) -> float:
    at = f"benchmarks[{number}]"
    if run.get("error_occurred"):
        raise FileError(str(path), None, f"{at}.error_message", str(run.get("error_message", "the run failed")))
    unit = str(run.get("time_unit"))
    if unit not in MILLISECONDS:
        raise FileError(str(path), None, f"{at}.time_unit", f"should be one of {', '.join(MILLISECONDS)}")
    time = run.get("real_time")
    if not is_number(time):
        raise FileError(str(path), None, f"{at}.real_time", "should be a number")
    return float(time) * MILLISECONDS[unit]


def _date(path: Path, context: Mapping[str, Any]) -> datetime:
    try:
        return datetime.fromisoformat(context["date"]).astimezone()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(str(path), None, "context.date", "is missing or no date; give --date") from error
