"""Which kernels account for the difference between two profiles. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.kernel_changes import pair_kernels


@dataclass(frozen=True)
class KernelDifference:
    """What one kernel, or one that only one of the two has, adds to a call."""

    kernel: str
    old_us: float | None
    new_us: float | None
    calls: tuple[int, int]

    @property
    def difference_us(self) -> float:
        """The time that it adds; negative where it saves time."""
        return (self.new_us or 0.0) - (self.old_us or 0.0)


@dataclass(frozen=True)
class ProfileChange:
    """One entry point of both."""

    entry: str
    times_ms: Mapping[str, tuple[float, float]]  #: of a call, within kernels and outside of them
    kernels: tuple[KernelDifference, ...]  #: those that differ most first


def compare_profiles(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[ProfileChange]:
    """Return the entry points that both have; equal work is paired, whatever its dispatches are called."""
    return [
        _compare_entry(name, old["entries"][name], new["entries"][name])
        for name in new["entries"]
        if name in old["entries"]
    ]


def _compare_entry(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> ProfileChange:
    differences = [
        KernelDifference(
            str((after or before or {})["kernel"]),
            before["us"] if before else None,
            after["us"] if after else None,
            (before["calls"] if before else 0, after["calls"] if after else 0),
        )
        for before, after in pair_kernels(old["kernels"], new["kernels"])
    ]
    differences.sort(key=lambda each: -abs(each.difference_us))
    times_ms = {key: (old[key], new[key]) for key in ("wall_ms", "kernels_ms", "outside_ms")}
    return ProfileChange(name, times_ms, tuple(differences))
