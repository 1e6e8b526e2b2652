"""Why an attempt failed: from exit codes, errnos and what the log says, to a kind and one line."""

import os
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jobs.errors import DISK_FULL_ERRNOS
from jobs.state import Failure, FailureKind
from jobs.task import Artifact, Command, Process
from workers.processes import End, Ended

TAIL_LINES = 40
READ_BYTES = 1 << 20  #: of a log's beginning and end; what says why is not in the middle
MESSAGE_CHARACTERS = 400
EXIT_BAD_INPUT = 2  #: of a stage program, with `error: ...` as its last line
EXIT_PEERS_LOST = 75  #: of a stage program that ran on several nodes, and is not the one that failed
EXIT_NOT_STARTED = 127  #: of the guard's child, and of `env` in a script's first line
#: iree-compile is a script that hands on its program's code: -9 becomes 247. A shell would make it 137.
EXITS_BY_KILL = frozenset({-signal.SIGKILL, 256 - signal.SIGKILL, 128 + signal.SIGKILL})
#: The same for what crashes.
CRASHES = {
    256 - number: number for number in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
}

DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|the disk is full", re.IGNORECASE)
MEMORY_FULL = re.compile(
    r"\bMemoryError\b|RESOURCE_EXHAUSTED|bad_alloc|Cannot allocate memory|\bout of memory\b|OutOfMemory|OUT_OF_MEMORY",
)
ERROR_LINE = re.compile(r"^(?:[^\s:][^:]*:\d+(?::\d+)?: )?(?:\S+: )?(?:fatal )?error: .*", re.MULTILINE | re.IGNORECASE)
RAISED_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*", re.MULTILINE)
COMPLAINT_LINE = re.compile(r"^.*\b(?:unknown|invalid|unable|cannot|can't|could not|fail(?:ed|ure)?)\b.*", re.M | re.I)


class LostFile(NamedTuple):
    """An input that the artifact store lacks, or has damaged."""

    stage: str  #: that made it
    artifact: Artifact
    how: str  #: missing, or damaged and where that lies


def of_commands(ended: Ended, commands: Sequence[Command], log: str, timeout_s: float) -> Failure | None:
    """Why commands that ended so have failed; `log` is what the last one printed. None when they have not."""
    match ended.how:
        case End.DONE:
            return None
        case End.FAILED:
            process = ended.ran[-1].process
            return of_process(process, commands[len(ended.ran) - 1].argv[0], log)
        case End.TIMED_OUT:
            kind, message = FailureKind.TIMED_OUT, f"{_current(ended, commands)} was ended after {timeout_s:g} s"
        case End.CANCELLED:
            kind, message = FailureKind.CANCELLED, "cancelled"
        case End.EXPIRED:
            kind, message = FailureKind.LEASE_LOST, "nothing was heard of its agent for longer than the lease"
        case End.LOST:
            kind, message = FailureKind.LEASE_LOST, "the guard of its processes was killed"
        case End.UNABLE:
            return of_machine(OSError(ended.errno, os.strerror(ended.errno)))
    return Failure(kind, message, tail(log))


def of_process(process: Process, tool: str, log: str) -> Failure:
    """Why one process failed."""
    said = log.rstrip().splitlines()
    last = said[-1].strip() if said else ""
    kind = FailureKind.TOOL_FAILED
    what = _said(log).removeprefix(f"{tool}: ")
    message = f"{tool}: {what or _ended(process.exit_code)}"
    if what and _signal_of(process.exit_code):
        message = f"{tool}: {_ended(process.exit_code)}; its last words: {what}"
    if DISK_FULL.search(log):
        kind = FailureKind.OUT_OF_DISK
    elif process.exit_code in EXITS_BY_KILL:
        kind, message = FailureKind.OUT_OF_MEMORY, f"{tool} was killed, as the kernel does when memory runs out"
    elif MEMORY_FULL.search(log):
        kind = FailureKind.OUT_OF_MEMORY
    elif process.exit_code == EXIT_BAD_INPUT and tool == "python" and last.startswith("error: "):
        kind, message = FailureKind.BAD_INPUT, last.removeprefix("error: ")
    elif process.exit_code == EXIT_PEERS_LOST and tool == "python" and last.startswith("error: "):
        kind, message = FailureKind.NODE_LOST, last.removeprefix("error: ")
    elif process.exit_code == EXIT_NOT_STARTED:
        kind = FailureKind.TOOLCHAIN
    return Failure(kind, _one_line(message), tail(log))


def of_machine(error: OSError) -> Failure:
    """A fault of the node: its disk, its folders, its limits."""
    is_full = error.errno in DISK_FULL_ERRNOS
    kind = FailureKind.OUT_OF_DISK if is_full else FailureKind.NODE_UNFIT
    place = f" ({error.filename})" if error.filename else ""
    return Failure(kind, _one_line(f"{error.strerror or error}{place}"))


def of_unfit(reasons: Iterable[str]) -> Failure:
    """What the attempt was to run on must not be used as it is."""
    return Failure(FailureKind.NODE_UNFIT, _one_line("; ".join(reasons)))


def of_lost(files: Iterable[LostFile]) -> Failure:
    """Inputs can't be had: whoever made them makes them again."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in files:
        alike.setdefault((one.stage, one.how), []).append(one.artifact.name)
    told = [f"{', '.join(names)}, which {stage} made: {how}" for (stage, how), names in alike.items()]
    return Failure(FailureKind.INPUT_LOST, _one_line("; ".join(told)))


def of_outputs(stage: str, error: Exception, traceback: str, log: str) -> Failure:
    """A stage could not read what its commands left: their fault when a file is missing or no JSON, else ours."""
    kind = FailureKind.OUT_OF_DISK if DISK_FULL.search(log) else FailureKind.TOOL_FAILED
    if isinstance(error, FileNotFoundError) and error.filename:
        message = f"the commands ended well and left no outputs/{Path(error.filename).name}"
    elif isinstance(error, OSError | ValueError):
        message = f"an output of {stage} can't be read: {error}"
    else:
        kind, message = FailureKind.INTERNAL, f"a report of {stage} is not as expected: {type(error).__name__}: {error}"
    return Failure(kind, _one_line(message), tail(f"{log}\n{traceback}"))


def tail(log: str) -> str:
    """The end of a log, for people."""
    return "\n".join(log.rstrip().splitlines()[-TAIL_LINES:])


def read_log(log: Path, start: int, end: int) -> str:
    """A part of a log file; of a very long one its beginning and end."""
    with log.open("rb") as file:
        file.seek(start)
        if end - start <= 2 * READ_BYTES:
            return file.read(end - start).decode(errors="replace")
        head = file.read(READ_BYTES)
        file.seek(end - READ_BYTES)
        return (head + b"\n[...]\n" + file.read(READ_BYTES)).decode(errors="replace")


def _current(ended: Ended, commands: Sequence[Command]) -> str:
    return commands[max(len(ended.ran) - 1, 0)].argv[0]


def _said(log: str) -> str:
    """The first line that calls itself an error, or reads like one; of a Python program that died its exception."""
    _, died, after = log.rpartition("Traceback (most recent call last)")
    found = RAISED_LINE.search(after) if died else ERROR_LINE.search(log) or COMPLAINT_LINE.search(log)
    if found:
        return found.group().strip()
    said = log.rstrip().splitlines()
    return said[-1].strip() if said else ""


def _ended(exit_code: int) -> str:
    number = _signal_of(exit_code)
    return f"ended by {signal.Signals(number).name}" if number else f"ended with exit code {exit_code} and said nothing"


def _signal_of(exit_code: int) -> int | None:
    """The signal that ended a process, or the program that it is a script around."""
    return -exit_code if exit_code < 0 else CRASHES.get(exit_code)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_CHARACTERS else f"{line[: MESSAGE_CHARACTERS - 3]}..."
