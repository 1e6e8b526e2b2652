"""Runs for tests of statistical decisions, without a database."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from db.reads.runs import MeasuredRun
from jobs.variants import Attention, Axes, Precision

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
AXES = Axes(precision=Precision.F16, attention=Attention.SDPA, tp=1).axes
numbers = count(1)


def run(median: float, **changes: Any) -> MeasuredRun:
    """Return the run of a new attempt, a minute after the one before."""
    number = next(numbers)
    made = MeasuredRun(
        attempt=f"{number:08x}-05-1",
        task=f"{number:08x}-05",
        job=f"{number:08x}",
        model="tiny",
        variant="tiny-FP16-TP1",
        target="mi300x",
        axes=AXES,
        metric="ttft_ms",
        unit="ms",
        workload=(("batch", 1), ("prompt_tokens", 64)),
        median=median,
        place="gpu-a",
        node="n1",
        devices=("mi300x:0",),
        digest="p" * 64,
        driver="6.4",
        at=NOON + timedelta(minutes=number),
        is_good=True,
    )
    return replace(made, **changes)


def runs(medians: Sequence[float], **changes: Any) -> list[MeasuredRun]:
    return [run(median, **changes) for median in medians]


def with_axes(**changes: Any) -> dict[str, Any]:
    return {**AXES, **changes}
