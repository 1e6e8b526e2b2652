"""The order in which a benchmark's processes run, and the files that they write."""

import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

Entry = TypeVar("Entry")

SEED = 0  #: of the shuffled order, so that planning again gives the same order


class ProcessOrder(StrEnum):
    """The order of a benchmark's processes when there are several workloads, each timed by several processes."""

    SEQUENTIAL = "sequential"  #: all processes of one workload, then all of the next
    INTERLEAVED = "interleaved"  #: one process of each workload in turn, so that drift affects all workloads alike
    SHUFFLED = "shuffled"  #: a pseudo-random order, the same in each run


def order_processes(entries: Sequence[Entry], processes: int, order: ProcessOrder) -> list[tuple[Entry, int]]:
    """Return each entry with the number of each of its processes, in the order in which they run."""
    by_entry = [(entry, number) for entry in entries for number in range(processes)]
    if order is ProcessOrder.INTERLEAVED:
        return sorted(by_entry, key=lambda pair: pair[1])
    if order is ProcessOrder.SHUFFLED:
        random.Random(SEED).shuffle(by_entry)
    return by_entry


def count_processes(settings: Mapping[str, Any], entries: int) -> int:
    """Return how many processes a benchmark has that times so many entries of each workload."""
    return len(settings["batch"]) * len(settings["prompt_tokens"]) * entries * int(settings.get("processes", 1))


def report_name(entry_name: str, process: int) -> str:
    """Return the name of the report that one of an entry's processes writes."""
    return f"{entry_name}.json" if process == 0 else f"{entry_name}.{process}.json"
