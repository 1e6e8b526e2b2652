"""How a measured workload is written for people: its sizes, or the task that was answered."""

from collections.abc import Mapping
from typing import Any

Workload = tuple[tuple[str, int | str], ...]  #: names and values of what applies, in their order

WORKLOAD_SIGNS = {"batch": "", "prompt_tokens": " x ", "new_tokens": " + ", "evaluation": ""}
WORKLOAD_LEGEND = "workload: sequences x tokens of each prompt + new tokens"


def workload_text(workload: Workload) -> str:
    """Return `4 x 2048 + 128`: sequences, tokens of each prompt, new tokens."""
    return "".join(f"{WORKLOAD_SIGNS[name]}{size}" for name, size in workload).removeprefix(" x ").removeprefix(" + ")


def workload_in(row: Mapping[str, Any]) -> str:
    """Return the same text for a row that has a column for each size."""
    return workload_text(tuple((name, row[name]) for name in WORKLOAD_SIGNS if row[name] is not None))


def workload_words(workload: Workload) -> str:
    """Return `batch 4, prompt 2048`, for sentences."""
    return ", ".join(f"{name.removesuffix('_tokens')} {size}" for name, size in workload)
