"""What differs between the kernels of two compilations: dispatches are paired by what they compute. Pure.

Numbers and names of dispatches change from release to release, so that equal work is found in three steps: by all that
is known of it, by its name without its number, and by the arithmetic of its contractions; equal ones in their order.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from workers.llm.kernels.table import label, rows_of

T = TypeVar("T")
Kernel = Mapping[str, Any]  #: a row of `workers.llm.kernels.table.rows_of`

#: What is compared of two kernels that compute the same, by the name that people read.
FACTS: dict[str, str] = {
    "calls": "calls",
    "bytes": "bytes",
    "flop": "flops",
    "groups": "workgroups",
    "VGPR": "vgpr",
    "spill": "spills",
    "scratch": "scratch_bytes",
    "LDS": "lds_bytes",
    "waves": "waves_per_simd",
    "MFMA": "mfma",
    "code": "instructions",
    "pipeline": "pipeline",
    "config": "lowering",
}
MIN_CODE_CHANGE = 0.02  #: of a kernel's instructions: fewer say nothing

#: What is compared of two entry points.
ENTRY_FACTS = (
    *("dispatches", "kernels", "flops", "bytes", "floor_ms", "few_workgroups", "spills", "min_waves", "mfma"),
    *("copies", "link_bytes", "link_steps", "link_floor_ms"),
)


@dataclass(frozen=True)
class KernelChange:
    """One kernel that differs; `old` or `new` is None where only one of the two has it."""

    old: Kernel | None
    new: Kernel | None
    changes: Mapping[str, tuple[Any, Any]]  #: by fact, the old and the new value

    @property
    def kind(self) -> str:
        """`new`, `gone` or `changed`."""
        return "new" if self.old is None else "gone" if self.new is None else "changed"

    @property
    def kernel(self) -> Kernel:
        """The kernel, as it is now where it still is."""
        kernel = self.old if self.new is None else self.new
        assert kernel is not None
        return kernel


@dataclass(frozen=True)
class EntryChange:
    """One entry point of both."""

    old_name: str
    new_name: str
    facts: Mapping[str, tuple[Any, Any]]  #: with the old and the new value, whether they differ or not
    kernels: tuple[KernelChange, ...]  #: those that differ
    paired: int  #: kernels that both have


def compare_reports(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[EntryChange]:
    """Return the entry points that both have, by name; by kind, batch and order where no name is in both."""
    names = [(name, name) for name in new["entries"] if name in old["entries"]]
    if not names:
        names = list(_matched(old["entries"], new["entries"], lambda name: name.partition("_")[0]))
    return [_compare_entry(old, new, *pair) for pair in names]


def _compare_entry(old: Mapping[str, Any], new: Mapping[str, Any], old_name: str, new_name: str) -> EntryChange:
    before, after = old["entries"][old_name], new["entries"][new_name]
    facts = {key: (before[key], after[key]) for key in ENTRY_FACTS if key in before and key in after}
    pairs = list(pair_kernels(rows_of(old, old_name), rows_of(new, new_name)))
    changes = [
        KernelChange(first, second, _changes(first, second) if first and second else {}) for first, second in pairs
    ]
    differing = [change for change in changes if change.kind != "changed" or change.changes]
    differing.sort(key=lambda change: -change.kernel["floor_us"])
    return EntryChange(old_name, new_name, facts, tuple(differing), sum(change.kind == "changed" for change in changes))


def pair_kernels(old: Sequence[Kernel], new: Sequence[Kernel]) -> Iterator[tuple[Kernel | None, Kernel | None]]:
    """Yield the kernels of both that compute the same, then those that only one has."""
    steps: tuple[Callable[[Kernel], Hashable], ...] = (
        lambda row: (label(row["kernel"]), row["kind"], row["flops"], row["bytes"], row["operand"], row["calls"]),
        lambda row: (label(row["kernel"]), row["operand"]),
        lambda row: (row["kind"], row["flops"]) if row["kind"] in ("matmul", "attention") else id(row),
    )
    left, right = _in_order(old), _in_order(new)
    for signature in steps:
        pairs = list(_matched(left, right, signature))
        yield from pairs
        left = _without(left, [first for first, _ in pairs])
        right = _without(right, [second for _, second in pairs])
    yield from ((row, None) for row in left)
    yield from ((None, row) for row in right)


def _in_order(rows: Iterable[Kernel]) -> list[Kernel]:
    """Return kernels by name with numbers as such, which is the order in which the compiler made them."""
    return sorted(rows, key=lambda row: [int(part) if part.isdigit() else -1 for part in row["kernel"].split("_")])


def _without(rows: Sequence[Kernel], taken: Sequence[Kernel]) -> list[Kernel]:
    ids = set(map(id, taken))
    return [row for row in rows if id(row) not in ids]


def _matched(old: Iterable[T], new: Iterable[T], signature: Callable[[T], Hashable]) -> Iterator[tuple[T, T]]:
    """Yield those of equal signature, the first with the first."""
    waiting: dict[Hashable, list[T]] = defaultdict(list)
    for item in old:
        waiting[signature(item)].append(item)
    for item in new:
        if same := waiting.get(signature(item)):
            yield same.pop(0), item


def _changes(old: Kernel, new: Kernel) -> dict[str, tuple[Any, Any]]:
    changes = {}
    for name, key in FACTS.items():
        before, after = old.get(key), new.get(key)
        if before != after and not (key == "instructions" and _is_alike(before, after)):
            changes[name] = (before, after)
    return changes


def _is_alike(old: int | None, new: int | None) -> bool:
    return bool(old and new and abs(new / old - 1) < MIN_CODE_CHANGE)
