"""Outlives this process by a moment, to end what its local Ray leaves behind when this process is killed.

Ray 2.60 itself needs a minute for that: its agents notice soon that their raylet is gone, and then try for 60 s to tell
a control store that is gone too.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "HALOCTL_RAY_FOLDER"  #: in the environment of every process of a Ray
PAUSE_S = 0.01
MOST_ROUNDS = 100


class Reaper:
    """A temporary folder for a Ray, and a process that ends the Ray and removes the folder once this one is gone."""

    def __init__(self) -> None:
        """From now on the processes that this one starts belong to the Ray."""
        self.folder = Path(tempfile.mkdtemp(prefix="haloctl-"))  # a short name: Ray puts sockets below it
        os.environ[VARIABLE] = str(self.folder)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # who reads this process's output need not wait for it
            stderr=subprocess.DEVNULL,
            env={},  # nobody takes it for one of Ray's
            start_new_session=True,  # a Ctrl-C is not for it
        )

    def close(self) -> None:
        """End what is left of the Ray."""
        os.environ.pop(VARIABLE, None)
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def end_all(folder: str, spared: int) -> None:
    """End a Ray, but never the process that started it; remove its folder."""
    for _ in range(MOST_ROUNDS):
        end_processes(folder, spared)
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return


def end_processes(folder: str, spared: int) -> None:
    """Kill the processes of a Ray until two looks in a row find none, but never `spared`.

    What just becomes another program has neither environment nor open files to be known by: the second look is for it.
    """
    looks = 0
    while looks < 2:
        found = [pid for pid in processes(folder) if pid != spared]
        looks = 0 if found else looks + 1
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def processes(folder: str) -> list[int]:
    """All that live of the Ray in a folder."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_of(folder, int(name))]


def _is_of(folder: str, pid: int) -> bool:
    """By its environment or its open logs: some of Ray's processes write their titles over their environments."""
    with suppress(OSError):
        if f"{VARIABLE}={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
        return any(
            _target(f"/proc/{pid}/fd/{number}").startswith(f"{folder}/") for number in os.listdir(f"/proc/{pid}/fd")
        )
    return False


def _target(link: str) -> str:
    with suppress(OSError):
        return os.readlink(link)
    return ""


if __name__ == "__main__":
    parent = os.getppid()
    sys.stdin.read()  # ends when whoever started this closes it, or is gone
    end_all(sys.argv[1], parent)
