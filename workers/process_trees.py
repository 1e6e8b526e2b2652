"""What the processes of an attempt have computed so far, and which they are, told by the kernel while they run.

Walked from the attempt's guard downwards, so that it costs as much as the attempt has threads, however many processes
the machine has. The kernel tells of children with CONFIG_PROC_CHILDREN, which distributions set.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from workers.device_users import attempt_of, is_hidden, status_of
from workers.processes import keeper

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TRIES = 3  #: at a tree that changes under the look
TIMES = slice(11, 15)  #: of /proc/PID/stat behind the name: a process's own, and those of children it has waited for


def guard_of(attempt_id: str) -> int | None:
    """The process that runs an attempt's commands and waits for all that they start; None while none of them runs."""
    guards = children(keeper.pid) if keeper.pid else ()
    return next((one for one in guards if any(attempt_of(pid) == attempt_id for pid in children(one))), None)


def children(pid: int) -> Iterator[int]:
    """Those of a process, whichever of its threads started them; none where it has ended."""
    for file in (PROC / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def cpu_s(top: int) -> float | None:
    """What a process and all below it have computed, those too that ended and were waited for.

    It never falls. None where it can't be told: processes came and went during each try.
    """
    for _ in range(TRIES):
        pids = tree(top)
        ticks = [_ticks(pid) for pid in pids]
        if None not in ticks and tree(top) == pids:
            return sum(filter(None, ticks)) / TICKS_PER_S
    return None


def is_in_tree(pid: int, top: int) -> bool:
    """Whether a process is another one or below it; also where it ended, or those above change too fast to be sure."""
    for _ in range(TRIES):
        above = list(_and_above(pid))
        if top in above:
            return True
        if None not in above:
            return False
    return True


def _and_above(pid: int) -> Iterator[int | None]:
    """A process and those above it, as far as they are shown; None where one ended under the look."""
    while pid > 0:
        yield pid
        status = status_of(pid)
        if status is None:
            if not is_hidden(pid):
                yield None
            return
        pid = status.parent


def tree(top: int) -> list[int]:
    """A process and all below it, parents before their children."""
    found = [top]
    for pid in found:
        found.extend(children(pid))
    return found


def _ticks(pid: int) -> int | None:
    with suppress(OSError):
        rest = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2]
        return sum(map(int, rest.split()[TIMES]))
    return None
