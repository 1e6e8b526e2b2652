"""The single-instance lock of a data folder: a new agent ends an earlier one, which belongs to a Ray that is gone.

A POSIX lock by fcntl, not filelock: the kernel can name the process that holds it, which is then killed.
"""

import fcntl
import os
import signal
import struct
from contextlib import suppress
from pathlib import Path

FLOCK = "hhqqi"  #: struct flock of fcntl(2), on Linux with 64 bits: type, whence, start, length, pid


def acquire_single_instance_lock(data: Path) -> int:
    """Lock the data folder for as long as this process lives, and kill the process that holds the lock.

    Returns the open lock. Raises OSError where the folder can't be written.
    """
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(data / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    holder = _holder(lock)
    if holder:
        with suppress(ProcessLookupError):
            os.kill(holder, signal.SIGKILL)
    fcntl.lockf(lock, fcntl.LOCK_EX)
    return lock


def _holder(lock: int) -> int:
    """Return the process that holds the lock; 0 where none does."""
    query = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, query))
    return 0 if kind == fcntl.F_UNLCK else int(pid)
