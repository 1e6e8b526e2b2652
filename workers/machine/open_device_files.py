"""Which processes have a GPU's device file open."""

import os
import re
from contextlib import suppress
from pathlib import Path

from workers.processes import proc

#: Device files that programs open to compute. A monitor opens some too, and a program that was told to use one GPU
#: often opens those of all.
COMPUTE_FILES = {"amd": re.compile(r"/dev/kfd"), "nvidia": re.compile(r"/dev/nvidia\d+")}


def pids_with_gpu_open(vendor: str) -> list[int]:
    """Return the other processes that have a compute device of a vendor open, as far as they may be examined."""
    return sorted(pid for pid in proc.all_pids() if pid != os.getpid() and has_gpu_open(pid, vendor))


def has_gpu_open(pid: int, vendor: str, root: Path = Path("/")) -> bool:
    """Whether a process has a compute device of a vendor open, as far as it may be examined."""
    with suppress(OSError):
        for descriptor in (root / "proc" / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):
                if COMPUTE_FILES[vendor].fullmatch(os.readlink(descriptor)):
                    return True
    return False
