"""Who is on a device, as the kernel tells: what processes are called, whose they are, which are left over from us."""

import os
import pwd
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workers.processes import ATTEMPT_VARIABLE, KEEPER, SWEEP_PAUSE_S

PROC = Path("/proc")
MACHINES_NAMESPACE = 0xEFFFFFFC  #: of process numbers: PROC_PID_INIT_INO of Linux, include/linux/proc_ns.h
LOOKS = 3  #: at who is above a process, before it is left alone
SWEEP_S = 5.0  #: a killed process that hangs in its driver may stay for longer
#: Device files that programs open to compute. A monitor opens some too, and a program that was told to use one GPU
#: often opens those of all.
COMPUTE_FILES = {"amd": re.compile(r"/dev/kfd"), "nvidia": re.compile(r"/dev/nvidia\d+")}
#: In the command line of every process that watches over an attempt's.
WATCHER = KEEPER[KEEPER.index("-c") + 1].encode()


@dataclass(frozen=True)
class Status:
    """A process of this machine."""

    pid: int
    name: str
    parent: int
    is_zombie: bool


def status_of(pid: int) -> Status | None:
    """What a process is; None where there is none of that number, as for one that another container sees."""
    with suppress(OSError):
        head, _, rest = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")
        state, parent = rest.split()[:2]
        return Status(pid, head.partition("(")[2], int(parent), state in "ZX")
    return None


def is_alive(pid: int) -> bool:
    """Whether it runs; one that only waits to be reaped holds nothing."""
    status = status_of(pid)
    return is_hidden(pid) if status is None else not status.is_zombie


def is_hidden(pid: int) -> bool:
    """Whether it is somebody else's on a machine that shows nobody those (hidepid, see proc(5))."""
    if status_of(pid) is None and pid > 0:
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        except OSError:
            return False
    return False


def has_machines_numbers() -> bool:
    """Whether a process has the same number here as to drivers; in a container it mostly has another one."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == MACHINES_NAMESPACE
    except OSError:  # a kernel without namespaces
        return True


def told(pid: int, name: str = "") -> str:
    """A process in words: `pid 4711 (python3, user bob)`."""
    status = status_of(pid)
    if status is None:
        return f"pid {pid} ({name or 'not seen from here'})"
    words = [status.name]
    with suppress(OSError):
        words.append(f"user {_user_name((PROC / str(pid)).stat().st_uid)}")
    if attempt := attempt_of(pid):
        words.append(f"attempt {attempt}")
    return f"pid {pid} ({', '.join(words)})"


def _user_name(uid: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def attempt_of(pid: int) -> str:
    """The attempt that a process was started for; nothing where it was for none, or may not be looked at."""
    prefix = f"{ATTEMPT_VARIABLE}=".encode()
    with suppress(OSError):
        variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        return next((one.removeprefix(prefix).decode() for one in variables if one.startswith(prefix)), "")
    return ""


def openers(vendor: str) -> list[int]:
    """The processes that have a compute device of a vendor open, as far as they may be looked at."""
    return sorted({pid for pid in _pids() if has_open(pid, vendor)})


def sweep_leftovers() -> int:
    """Kill what attempts left behind: what was started for one, and has nobody above that watches over it.

    Returns how many there were; they are gone, unless one hangs in the kernel.
    """
    leftovers = [pid for pid in _pids() if attempt_of(pid) and is_alive(pid) and not _is_watched(pid)]
    for pid in leftovers:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + SWEEP_S
    while any(map(is_alive, leftovers)) and time.monotonic() < deadline:
        time.sleep(SWEEP_PAUSE_S)
    return len(leftovers)


def is_of_running_attempt(pid: int) -> bool:
    """Whether a process was started for an attempt that goes on, of this agent's or another's."""
    return bool(attempt_of(pid)) and _is_watched(pid)


def _is_watched(pid: int) -> bool:
    """Whether one of those above watches over it; also where those above change too fast to be sure."""
    for _ in range(LOOKS):
        above = list(_and_above(pid))
        if any(WATCHER in line for line in above if line):
            return True
        if None not in above:
            return False
    return True


def _and_above(pid: int) -> Iterator[bytes | None]:
    """The command lines of a process and of those above it; None where one ended under the look."""
    while pid > 1:
        status = status_of(pid)
        if status is None:
            yield None
            return
        with suppress(OSError):
            yield (PROC / str(pid) / "cmdline").read_bytes()
        pid = status.parent


def _pids() -> Iterator[int]:
    for name in os.listdir(PROC):
        if name.isdecimal() and int(name) != os.getpid():
            yield int(name)


def has_open(pid: int, vendor: str) -> bool:
    """Whether a process has a compute device of a vendor open, as far as it may be looked at."""
    with suppress(OSError):
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):
                if COMPUTE_FILES[vendor].fullmatch(os.readlink(descriptor)):
                    return True
    return False
