"""What moves between devices in a compiled program, from its text in IREE's stream dialect."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

DEVICE = r"#hal\.device\.affinity<@__device_(\d+)>"
EXECUTE = re.compile(rf"(%\S+) = stream\.cmd\.execute on\({DEVICE}\)(?: await\((%[^)]*)\))?")
JOIN = re.compile(r"(%\S+) = stream\.timepoint\.join max\((.*?)\)")
AWAIT = re.compile(r"(.*?) = stream\.\S+ .*await\((%[^)]*)\)")
COPY = re.compile(r"stream\.cmd\.copy .*, %c(\d+) :")
FLUSH = re.compile(rf"stream\.cmd\.flush to\({DEVICE}\)")
DISPATCH = re.compile(r"stream\.cmd\.dispatch @\S+::@(\w[\w.]*)")


@dataclass
class Execution:
    """One command buffer of a device."""

    device: int
    step: int  #: 1 for one that waits for no other of the function
    kernels: list[str] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)  #: to which device, and bytes


def executions(stream: str, function: str) -> list[Execution]:
    """Return the command buffers of a function, in the order of the text."""
    found = re.search(rf"  util\.func \w+ @{re.escape(function)}\(.*?\n  }}\n", stream, re.DOTALL)
    assert found, f"there is no function {function}"
    return list(_executions(found[0]))


def _executions(text: str) -> Iterator[Execution]:
    steps: dict[str, int] = {}  #: after which a timepoint is reached
    current, size_bytes = Execution(0, 0), 0
    for line in text.splitlines():
        if found := EXECUTE.match(line.strip()):
            result, device, awaited = found.groups()
            current = Execution(int(device), steps.get(awaited, 0) + 1)
            steps[result] = current.step
            yield current
        elif found := JOIN.match(line.strip()) or AWAIT.match(line.strip()):
            steps[found[1].split(", ")[-1]] = max(steps.get(name, 0) for name in found[2].split(", "))
        elif found := COPY.search(line):
            size_bytes = int(found[1])
        elif found := FLUSH.search(line):
            current.sent.append((int(found[1]), size_bytes))
        elif found := DISPATCH.search(line):
            current.kernels.append(found[1])


def bytes_by_link(done: Iterable[Execution]) -> Counter[tuple[int, int]]:
    """Return the bytes that each device sends to each other."""
    links: Counter[tuple[int, int]] = Counter()
    for execution in done:
        for to, size_bytes in execution.sent:
            links[execution.device, to] += size_bytes
    return links


def steps_of_transfers(done: Iterable[Execution]) -> set[int]:
    """Return the steps after which something is sent."""
    return {execution.step for execution in done if execution.sent}
