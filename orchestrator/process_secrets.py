"""Keeps what a head knows from the processes of the stages that run beside it, as the same user.

Environments are read in /proc/PID/environ, which shows the block of memory that a process was started with, whatever it
has unset since; and memory by tracing the process. Only root may do either to a process that can't be dumped.
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

#: Variables whose values are secrets, once what they are for has been read.
SECRETS = ("PGPASSWORD", "HALOCTL_DATABASE_URL")
MASK = b"*"

PR_SET_DUMPABLE = 4
ENVIRONMENT_FIELDS = slice(47, 49)  #: of /proc/self/stat behind the name: env_start and env_end, see proc(5)


def hide(names: Sequence[str] = SECRETS) -> None:
    """Unset variables, overwrite their values in the block that /proc shows, and forbid dumps and tracing.

    Call it once the database is open, in a process that leads for long. py-spy and gdb need root then.
    """
    for name in names:
        os.environ.pop(name, None)
    start, end = _initial_block()
    block = ctypes.string_at(start, end - start)
    at = 0
    for variable in block.split(b"\0"):
        key, sign, value = variable.partition(b"=")
        if sign and os.fsdecode(key) in names:
            ctypes.memmove(start + at + len(key) + 1, MASK * len(value), len(value))
        at += len(variable) + 1
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _initial_block() -> tuple[int, int]:
    """Return where the environment lies that this process was started with."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[ENVIRONMENT_FIELDS]
    start, end = map(int, fields)
    return start, max(start, end)
