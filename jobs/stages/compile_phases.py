"""The time of each phase of a compilation: the compiler writes what it has at the end of each."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from jobs.task import Measurement

#: The phases of IREE's pipeline, but for the first: nothing tells when that began.
PHASES = (
    *("abi", "preprocessing", "global-optimization", "dispatch-creation", "flow", "stream", "executable-sources"),
    *("executable-configurations", "executable-targets", "hal", "vm"),
)
DUMPED = re.compile(r".+\.(\d+)\.([a-z-]+)\.mlir")


def phase_metric(phase: str) -> str:
    """Return the metric with the time of a phase."""
    return f"compile_{phase.replace('-', '_')}_s"


def phase_times(folder: Path) -> Iterator[Measurement]:
    """Yield the time from the end of the phase before to the end of each, by the times of the dumped files."""
    dumped = [(match, path) for path in folder.glob("*.mlir") if (match := DUMPED.fullmatch(path.name))]
    ends = sorted((int(match[1]), match[2], path.stat().st_mtime) for match, path in dumped)
    for (before, _, begin_s), (number, phase, end_s) in pairwise(ends):
        if phase in PHASES and number == before + 1 and end_s >= begin_s:
            yield Measurement(phase_metric(phase), (end_s - begin_s,))
