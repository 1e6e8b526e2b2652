"""One agent for a data folder: a new one ends an earlier one, which belongs to a Ray that is gone."""

import fcntl
import os
import signal
import struct
from contextlib import suppress
from pathlib import Path

FLOCK = "hhqqi"  #: struct flock of fcntl(2), on Linux with 64 bits: type, whence, start, length, pid


def be_alone(data: Path) -> int:
    """Lock the data folder for as long as this process lives; whoever holds it is killed. Returns the open lock.

    Raises OSError where the folder can't be written. The lock is a process's, which the kernel can name.
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
    """The process that has it locked; 0: nobody."""
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else int(pid)
