"""When a program's entry points run what on which device, from the phase `stream` of the compiler.

An entry point calls functions, one for each layer, which start dispatches on devices and copy to others. Calls are
followed with what they are given: when a value is ready counts the steps and the time of all transfers before it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.llm.kernels.dispatch_cost import walk

SYMBOL = re.compile(r"@(?:\"([^\"]+)\"|([\w.$-]+))")
DEVICE = re.compile(r"__device_(\d+)")
OTHER_DEVICE = re.compile(r"stream\.cmd\.(?:flush to|invalidate from)\((.*?)\)\s")
MAX_DEPTH = 64  #: of calls within calls

Link = tuple[int, int]  #: from one device to another


@dataclass(frozen=True)
class Ready:
    """What lies between the begin of a call and the moment when a value is there."""

    steps: int = 0  #: transfers between devices, one after another
    link_s: float = 0.0  #: their time at the links' full rate

    def max(self, other: "Ready") -> "Ready":
        """Return what lies before both."""
        return Ready(max(self.steps, other.steps), max(self.link_s, other.link_s))


START = Ready()


@dataclass
class EntrySchedule:
    """What one call of an entry point starts."""

    calls: Counter[tuple[str, int]] = field(default_factory=Counter)  #: by dispatch and device
    copied_bytes: Counter[int] = field(default_factory=Counter)  #: within a device, by device
    copies: int = 0
    fills: int = 0
    sent_bytes: Counter[Link] = field(default_factory=Counter)
    transfers: Counter[Link] = field(default_factory=Counter)
    last: Ready = Ready()

    def link_floor_s(self, bytes_per_s: float) -> float:
        """Return the least time that the links need: one after another where steps wait, or the busiest of them."""
        return max(self.last.link_s, *(sent / bytes_per_s for sent in self.sent_bytes.values()), 0.0)


@dataclass(frozen=True)
class Submission:
    """What is handed to a device at once; lengths are values."""

    device: int
    dispatches: tuple[str, ...]
    copied: tuple[int, ...]  #: lengths of the copies within the device
    received: tuple[tuple[int, int], ...]  #: from which device, and the length: before it computes
    sent: tuple[tuple[int, int], ...]  #: to which device, and the length: when it has computed
    fills: int


@dataclass(frozen=True)
class Instruction:
    """One operation of a function; values are numbered."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    name: str = ""  #: of the global or function that it is about
    constant: int | None = None
    submission: Submission | None = None
    kind: str = ""  #: load, store, call, return, or nothing of these


@dataclass(frozen=True)
class Function:
    """A function's arguments and operations."""

    arguments: tuple[int, ...]
    instructions: tuple[Instruction, ...]


KINDS = {
    "util.global.load": "load",
    "util.global.store": "store",
    "util.call": "call",
    "util.return": "return",
}
NAMED_BY = {"load": "global", "store": "global", "call": "callee"}


def read_schedules(module: Any, link_bytes_per_s: float) -> dict[str, EntrySchedule]:
    """Return the schedule of each entry point: the public functions that no other one calls."""
    operations = {
        symbol(operation): operation
        for operation in (each.operation for each in module.body.operations)
        if operation.name == "util.func" and operation.regions and len(operation.regions[0].blocks)
    }
    functions = {name: read_function(operation) for name, operation in operations.items()}
    called = {each.name for function in functions.values() for each in function.instructions if each.kind == "call"}
    public = [name for name, operation in operations.items() if "iree.abi.stub" in operation.attributes]
    entries = [name for name in public if name not in called] or public
    return {name: _Run(functions, link_bytes_per_s).entry(name) for name in entries}


def read_function(operation: Any) -> Function:
    """Return a function with its operations; those of branches and loops stand there once."""
    numbers: dict[Any, int] = {}

    def number(values: Any) -> tuple[int, ...]:
        return tuple(numbers.setdefault(value, len(numbers)) for value in values)

    arguments = number(operation.regions[0].blocks[0].arguments)
    return Function(arguments, tuple(_instruction(each, number) for each in _top_level(operation)))


def symbol(operation: Any) -> str:
    """Return the name that an operation defines."""
    return str(operation.attributes["sym_name"]).strip('"')


def names_in(text: str) -> list[str]:
    """Return the symbols that a text refers to."""
    return [quoted or plain for quoted, plain in SYMBOL.findall(text)]


def _top_level(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for each in block.operations:
                yield each.operation
                if each.operation.name.startswith("scf."):
                    yield from _top_level(each.operation)


def _instruction(operation: Any, number: Callable[[Any], tuple[int, ...]]) -> Instruction:
    operands, results = number(operation.operands), number(operation.results)
    if operation.name == "stream.cmd.execute":
        return Instruction(operands, results, submission=_submission(operation, number))
    if operation.name == "arith.constant":
        return Instruction(operands, results, constant=_whole_number(str(operation.attributes["value"])))
    kind = KINDS.get(operation.name, "")
    name = names_in(str(operation.attributes[NAMED_BY[kind]]))[-1] if kind in NAMED_BY else ""
    return Instruction(operands, results, name, kind=kind)


def _submission(operation: Any, number: Callable[[Any], tuple[int, ...]]) -> Submission:
    """Read a submission.

    A transfer is a copy from what another device has written (`invalidate from`), or to what is then made visible to
    another device (`flush to`); all other copies stay within the device.
    """
    dispatches: list[str] = []
    copies: list[tuple[tuple[int, int], tuple[int, int], int]] = []  #: source and target, each with offset, and length
    received: dict[tuple[int, int], tuple[int, int]] = {}
    sent: dict[tuple[int, int], tuple[int, int]] = {}
    fills = 0
    for inner in walk(operation):
        operands = number(inner.operands)
        match inner.name:
            case "stream.cmd.dispatch":
                dispatches.append(names_in(str(inner.attributes["entry_points"]))[1])
            case "stream.cmd.fill":
                fills += 1
            case "stream.cmd.copy":
                source, _, source_offset, target, _, target_offset, length = operands
                copies.append(((source, source_offset), (target, target_offset), length))
            case "stream.cmd.invalidate" | "stream.cmd.flush":
                resource, _, offset, length = operands
                transfers = sent if inner.name.endswith("flush") else received
                transfers[resource, offset] = (_other_device(inner), length)
    return Submission(
        _device_of(str(operation.attributes["affinity"]) if "affinity" in operation.attributes else ""),
        tuple(dispatches),
        tuple(length for source, target, length in copies if source not in received and target not in sent),
        tuple(received.values()),
        tuple(sent.values()),
        fills,
    )


def _whole_number(text: str) -> int | None:
    digits = text.partition(":")[0].strip()
    return int(digits) if digits.lstrip("-").isdecimal() else None


def _device_of(affinity: str) -> int:
    match = DEVICE.search(affinity)
    return int(match[1]) if match else 0


def _other_device(operation: Any) -> int:
    match = OTHER_DEVICE.search(str(operation))
    return _device_of(match[1]) if match else 0


Value = int | Ready  #: a whole number, or when another value is there


class _Run:
    """One call of an entry point, followed without running it."""

    def __init__(self, functions: Mapping[str, Function], link_bytes_per_s: float) -> None:
        self._functions, self._link_bytes_per_s = functions, link_bytes_per_s
        self._globals: dict[str, Ready] = defaultdict(Ready)
        self._schedule = EntrySchedule()

    def entry(self, name: str) -> EntrySchedule:
        """Return what a call of an entry point starts."""
        self._call(name, (), 0)
        return self._schedule

    def _call(self, name: str, given: Sequence[Value], depth: int) -> list[Value]:
        """Follow a function, and return what it returns."""
        if depth > MAX_DEPTH:
            raise RecursionError(f"{name} calls itself")
        function = self._functions[name]
        values: dict[int, Value] = dict(zip(function.arguments, given, strict=False))
        returned: list[Value] = []
        for each in function.instructions:
            operands = [values.get(operand, START) for operand in each.operands]
            results: Sequence[Value] = [_latest(operands)] * len(each.results)
            if each.constant is not None:
                results = [each.constant]
            elif each.submission:
                results = [self._submit(each.submission, _latest(operands), values)]
            elif each.kind == "load":
                results = [self._globals[each.name]]
            elif each.kind == "store":
                self._globals[each.name] = _latest(operands)
            elif each.kind == "return":
                returned = operands
            elif each.kind == "call" and each.name in self._functions:
                results = self._call(each.name, operands, depth + 1)
            values.update(zip(each.results, results, strict=False))
        return returned

    def _submit(self, submission: Submission, begin: Ready, values: Mapping[int, Value]) -> Ready:
        """Count what a submission does, and return when it is done."""
        schedule, device = self._schedule, submission.device
        for dispatch in submission.dispatches:
            schedule.calls[dispatch, device] += 1
        schedule.fills += submission.fills
        schedule.copies += len(submission.copied)
        schedule.copied_bytes[device] += sum(_number(values.get(length)) for length in submission.copied)
        received = [((source, device), length) for source, length in submission.received]
        sent = [((device, target), length) for target, length in submission.sent]
        return self._transfer(sent, values, self._transfer(received, values, begin))

    def _transfer(self, transfers: Sequence[tuple[Link, int]], values: Mapping[int, Value], begin: Ready) -> Ready:
        """Count transfers that begin at once, each link by itself, and return when all are done."""
        if not transfers:
            return begin
        moved: Counter[Link] = Counter()
        for link, length in transfers:
            moved[link] += _number(values.get(length))
            self._schedule.transfers[link] += 1
        self._schedule.sent_bytes.update(moved)
        end = Ready(begin.steps + 1, begin.link_s + max(moved.values()) / self._link_bytes_per_s)
        self._schedule.last = self._schedule.last.max(end)
        return end


def _latest(values: Sequence[Value]) -> Ready:
    latest = START
    for value in values:
        if isinstance(value, Ready) and value is not START:
            latest = latest.max(value)
    return latest


def _number(value: Value | None) -> int:
    return value if isinstance(value, int) else 0
