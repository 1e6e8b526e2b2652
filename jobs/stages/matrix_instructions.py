"""The matrix instructions of a program's entry points, from the compiler's dump.

Equal kernels are shared, under the name of the entry point that comes first: which kernels an entry point runs, only
the schedule says, in the phase `stream`. A kernel counts once for each kind of entry point that runs it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SCHEDULE = "*.stream.mlir"
FUNCTION = re.compile(r"\s*util\.func (public|private) @\"?([^\s\"(]+)")
CALL = re.compile(r"util\.call @\"?([^\s\"(]+)")
DISPATCH = re.compile(r"stream\.cmd\.dispatch \{?@\"?[^\s:\"]+\"?::@\"?([^\s\"({,]+)")


def count_matrix_instructions(
    folder: Path, instruction: str, suffix: str, entries: Sequence[str]
) -> dict[str, Counter[str]]:
    """Count by kind of entry point and name of the instruction. Raises FileNotFoundError without a schedule."""
    of_kernels, functions = _count_in_kernels(folder, instruction, suffix), kernels_of_functions(folder)
    counts = {}
    for entry in entries:
        kernels = set().union(*(run for name, run in functions.items() if name.startswith(f"{entry}_bs")))
        counts[entry] = sum((of_kernels[kernel] for kernel in kernels), Counter[str]())
    return counts


def kernels_of_functions(folder: Path) -> dict[str, set[str]]:
    """Return the kernels that each public function runs, itself or in a function that it calls."""
    schedule = next(folder.glob(SCHEDULE), None)
    if schedule is None:
        raise FileNotFoundError(f"the compiler dumped no {SCHEDULE}")
    public: list[str] = []
    started: dict[str, set[str]] = defaultdict(set)
    called: dict[str, set[str]] = defaultdict(set)
    function = ""
    with schedule.open(errors="replace") as lines:
        for line in lines:
            if match := FUNCTION.match(line):
                function = match[2]
                public += [function] if match[1] == "public" else []
            elif match := DISPATCH.search(line):
                started[function].add(match[1])
            elif match := CALL.search(line):
                called[function].add(match[1])
    return {name: set().union(*(started[reached] for reached in _reached(name, called))) for name in public}


def _reached(name: str, called: Mapping[str, set[str]]) -> set[str]:
    """Return a function with all that it calls, directly or not."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        function = waiting.pop()
        if function not in reached:
            reached.add(function)
            waiting += called.get(function, ())
    return reached


def _count_in_kernels(folder: Path, instruction: str, suffix: str) -> Mapping[str, Counter[str]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in folder.glob(f"*{suffix}"):
        for kernel, name in _instructions(path, instruction):
            counts[kernel][name] += 1
    return counts


def _instructions(path: Path, instruction: str) -> Iterator[tuple[str, str]]:
    """Yield kernel and name of each such instruction; a kernel begins with `.globl` and its symbol."""
    kernel = ""
    with path.open(errors="replace") as lines:
        for line in lines:
            words = line.split(maxsplit=2)
            if words[:1] == [".globl"]:
                kernel = words[1].strip('"')
            elif words and words[0].startswith(instruction):
                yield kernel, words[0]
