"""The cause of an attempt's failure, as a kind and one line, from exit codes, errnos and the log."""

import os
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jobs.errors import DISK_FULL_ERRNOS
from jobs.state import Failure, FailureKind
from jobs.task import Artifact, Command, Process
from workers.processes.client import EndReason, RunResult

TAIL_LINES = 40
READ_BYTES = 1 << 20  #: of a log's beginning and end; the cause is not in the middle
MESSAGE_CHARACTERS = 400
EXIT_BAD_INPUT = 2  #: of a stage program, with `error: ...` as its last line
EXIT_PEERS_LOST = 75  #: of a stage program that ran on several nodes, and is not the one that failed
EXIT_NOT_STARTED = 127  #: of the supervisor's child, and of `env` in a script's first line
#: iree-compile is a script that passes on its program's exit code: -9 becomes 247. A shell would make it 137.
EXITS_BY_KILL = frozenset({-signal.SIGKILL, 256 - signal.SIGKILL, 128 + signal.SIGKILL})
#: The same for crashes, with the signal that each means.
CRASHES = {
    256 - number: number for number in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
}

DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|the disk is full", re.IGNORECASE)
MEMORY_FULL = re.compile(
    r"\bMemoryError\b|RESOURCE_EXHAUSTED|bad_alloc|Cannot allocate memory|\bout of memory\b|OutOfMemory|OUT_OF_MEMORY",
)
ERROR_LINE = re.compile(r"^(?:[^\s:][^:]*:\d+(?::\d+)?: )?(?:\S+: )?(?:fatal )?error: .*", re.MULTILINE | re.IGNORECASE)
EXCEPTION_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*", re.MULTILINE)
COMPLAINT_LINE = re.compile(r"^.*\b(?:unknown|invalid|unable|cannot|can't|could not|fail(?:ed|ure)?)\b.*", re.M | re.I)


#: What can be done about known faults of tools, by the text of their errors (docs/internals/known-faults.md).
REMEDIES = {
    "failed to solve for timepoint coverage": "a known fault of IREE with programs for several devices: "
    "give another tp, or other batch sizes",
}


class LostFile(NamedTuple):
    """An input that the artifact store lacks, or has damaged."""

    stage: str  #: that made it
    artifact: Artifact
    how: str  #: missing, or damaged and where that lies


def of_commands(result: RunResult, commands: Sequence[Command], log: str, timeout_s: float) -> Failure | None:
    """Return why a run of commands has failed, None where it has not; `log` is what the last command printed."""
    match result.reason:
        case EndReason.DONE:
            return None
        case EndReason.FAILED:
            process = result.commands[-1].process
            return of_process(process, commands[len(result.commands) - 1].argv[0], log)
        case EndReason.TIMED_OUT:
            kind, message = FailureKind.TIMED_OUT, f"{_current(result, commands)} timed out after {timeout_s:g} s"
        case EndReason.CANCELLED:
            kind, message = FailureKind.CANCELLED, "cancelled"
        case EndReason.EXPIRED:
            kind, message = FailureKind.LEASE_LOST, "its agent was silent for longer than the lease"
        case EndReason.LOST:
            kind, message = FailureKind.LEASE_LOST, "the supervisor of its processes was killed"
        case EndReason.UNABLE:
            return of_machine(OSError(result.errno, os.strerror(result.errno)))
    return Failure(kind, message, tail(log))


def of_process(process: Process, tool: str, log: str) -> Failure:
    """Return why a process failed; `log` is what it printed."""
    lines = log.rstrip().splitlines()
    last = lines[-1].strip() if lines else ""
    kind = FailureKind.TOOL_FAILED
    what = _error_line(log).removeprefix(f"{tool}: ")
    message = f"{tool}: {what or _describe_exit(process.exit_code)}"
    if what and _signal_of(process.exit_code):
        message = f"{tool}: {_describe_exit(process.exit_code)}: {what}"
    message += "".join(f" ({remedy})" for error, remedy in REMEDIES.items() if error in what)
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
    """Return a failure of the node: of its disk, its folders or its limits."""
    is_full = error.errno in DISK_FULL_ERRNOS
    kind = FailureKind.OUT_OF_DISK if is_full else FailureKind.NODE_UNFIT
    place = f" ({error.filename})" if error.filename else ""
    return Failure(kind, _one_line(f"{error.strerror or error}{place}"))


def of_unfit(reasons: Iterable[str]) -> Failure:
    """Return the failure of an attempt whose devices must not be used as they are."""
    return Failure(FailureKind.NODE_UNFIT, _one_line("; ".join(reasons)))


def of_lost(files: Iterable[LostFile]) -> Failure:
    """Return the failure of an attempt whose inputs are lost: the tasks that made them run again."""
    groups: dict[tuple[str, str], list[str]] = {}
    for file in files:
        groups.setdefault((file.stage, file.how), []).append(file.artifact.name)
    messages = [f"{', '.join(names)}, which {stage} made: {how}" for (stage, how), names in groups.items()]
    return Failure(FailureKind.INPUT_LOST, _one_line("; ".join(messages)))


def of_changed_input(message: str) -> Failure:
    """Return the failure of an attempt whose inputs are not those that its job was planned with."""
    return Failure(FailureKind.INPUT_CHANGED, _one_line(message))


def of_outputs(stage: str, error: Exception, traceback: str, log: str) -> Failure:
    """Return the failure of a stage that can't read its outputs.

    It is the tool's where a file is missing or is no JSON, else haloctl's own.
    """
    kind = FailureKind.OUT_OF_DISK if DISK_FULL.search(log) else FailureKind.TOOL_FAILED
    if isinstance(error, FileNotFoundError) and error.filename:
        message = f"the commands succeeded but left no outputs/{Path(error.filename).name}"
    elif isinstance(error, OSError | ValueError):
        message = f"an output of {stage} can't be read: {error}"
    else:
        kind, message = FailureKind.INTERNAL, f"a report of {stage} is not as expected: {type(error).__name__}: {error}"
    return Failure(kind, _one_line(message), tail(f"{log}\n{traceback}"))


def tail(log: str) -> str:
    """Return the end of a log, for people."""
    return "\n".join(log.rstrip().splitlines()[-TAIL_LINES:])


def read_log(log: Path, start: int, end: int) -> str:
    """Return a part of a log file; of a very long part its beginning and end."""
    with log.open("rb") as file:
        file.seek(start)
        if end - start <= 2 * READ_BYTES:
            return file.read(end - start).decode(errors="replace")
        head = file.read(READ_BYTES)
        file.seek(end - READ_BYTES)
        return (head + b"\n[...]\n" + file.read(READ_BYTES)).decode(errors="replace")


def _current(result: RunResult, commands: Sequence[Command]) -> str:
    return commands[max(len(result.commands) - 1, 0)].argv[0]


def _error_line(log: str) -> str:
    """Return the exception of a Python program that died, else the first line that is, or looks like, an error."""
    _, traceback, after = log.rpartition("Traceback (most recent call last)")
    match = EXCEPTION_LINE.search(after) if traceback else ERROR_LINE.search(log) or COMPLAINT_LINE.search(log)
    if match:
        return match.group().strip()
    lines = log.rstrip().splitlines()
    return lines[-1].strip() if lines else ""


def _describe_exit(exit_code: int) -> str:
    number = _signal_of(exit_code)
    if number:
        return f"ended by {signal.Signals(number).name}"
    return f"ended with exit code {exit_code} and printed nothing"


def _signal_of(exit_code: int) -> int | None:
    """Return the signal that ended a process, or the program that it is a script around."""
    return -exit_code if exit_code < 0 else CRASHES.get(exit_code)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_CHARACTERS else f"{line[: MESSAGE_CHARACTERS - 3]}..."
