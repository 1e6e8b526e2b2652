"""The processes that were started for attempts, recognised by their environment and by what runs above them."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

from workers.processes import proc

ATTEMPT_VARIABLE = "HALOCTL_ATTEMPT"  #: in the environment of every process of an attempt
PAUSE_S = 0.01
KILL_TIMEOUT_S = 5.0  #: a killed process that hangs in its driver may stay for longer

#: In the command line of every fork server, and so of every supervisor. An import and not the path of a file, so that
#: its bytecode is taken from __pycache__.
FORK_SERVER_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from workers.processes import fork_server; fork_server.main()"
)


def attempt_of(pid: int) -> str:
    """Return the id of the attempt that a process was started for; empty where there is none, or it can't be read."""
    prefix = f"{ATTEMPT_VARIABLE}=".encode()
    variables = proc.environment_of(pid)
    return next((variable.removeprefix(prefix).decode() for variable in variables if variable.startswith(prefix)), "")


def is_of_running_attempt(pid: int) -> bool:
    """Whether a process was started for an attempt that goes on, of this agent's or another's."""
    return bool(attempt_of(pid)) and _is_supervised(pid)


def _is_supervised(pid: int) -> bool:
    """Whether a fork server is above a process; also True where its ancestors are hidden or change too fast."""
    ancestors, program = proc.ancestors(pid), FORK_SERVER_PROGRAM.encode()
    return ancestors is None or any(
        program in proc.command_line_of(ancestor) or proc.is_hidden(ancestor) for ancestor in ancestors if ancestor > 1
    )


def kill_leftovers() -> int:
    """Kill every process that was started for an attempt and is no longer supervised, and return how many there were.

    They are gone on return, unless one hangs in the kernel.
    """
    leftovers = [pid for pid in _other_pids() if attempt_of(pid) and proc.is_alive(pid) and not _is_supervised(pid)]
    for pid in leftovers:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while any(map(proc.is_alive, leftovers)) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    return len(leftovers)


def kill_attempt(attempt_id: str) -> int:
    """Kill every process that has an attempt's id in its environment, and return how many there were.

    It returns when two scans in a row find none: a process that is just executing another program has no environment
    for a moment.
    """
    killed: set[int] = set()
    empty_scans = 0
    while empty_scans < 2:
        pids = {pid for pid in _other_pids() if f"{ATTEMPT_VARIABLE}={attempt_id}".encode() in proc.environment_of(pid)}
        empty_scans = 0 if pids else empty_scans + 1
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= pids
        time.sleep(PAUSE_S)
    return len(killed)


def describe_process(pid: int, name: str = "") -> str:
    """Describe a process for people: `pid 4711 (python3, user bob)`. `name` is for one that is not shown here."""
    import psutil

    try:
        process = psutil.Process(pid)
        words = [process.name(), f"user {process.username()}"]
    except psutil.Error:
        return f"pid {pid} ({name or 'not seen from here'})"
    if attempt := attempt_of(pid):
        words.append(f"attempt {attempt}")
    return f"pid {pid} ({', '.join(words)})"


def _other_pids() -> Iterator[int]:
    return (pid for pid in proc.all_pids() if pid != os.getpid())
