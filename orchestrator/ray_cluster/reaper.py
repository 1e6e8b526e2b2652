"""A process that outlives this one by a moment, to end what its local Ray leaves behind when this one is killed.

Ray 2.60 itself needs a minute for that: its agents notice soon that their raylet is gone, and then try for 60 s to tell
a control store that is gone too.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "HALOCTL_RAY_FOLDER"  #: in the environment of every process of a Ray
PAUSE_S = 0.01
MOST_ROUNDS = 100


class Reaper:
    """A process that ends a Ray and removes its folder once this process is gone."""

    def __init__(self, folder: Path) -> None:
        """Mark the processes that this one starts from now on as those of the Ray in `folder`."""
        self.folder = folder
        os.environ[VARIABLE] = str(self.folder)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # readers of this process's output must not wait for it
            stderr=subprocess.DEVNULL,
            env={},  # so that it is not taken for one of Ray's
            start_new_session=True,  # Ctrl-C must not reach it
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
    """Kill the processes of a Ray until two scans in a row find none, but never `spared`.

    A process that is just replacing its program has neither environment nor open files to be recognised by: the second
    scan is for it.
    """
    scans = 0
    while scans < 2:
        pids = [pid for pid in processes(folder) if pid != spared]
        scans = 0 if pids else scans + 1
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def processes(folder: str) -> list[int]:
    """Return the live processes of the Ray in a folder."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_of(folder, int(name))]


def _is_of(folder: str, pid: int) -> bool:
    """Recognise a process by its environment or its open logs: some of Ray's overwrite their environments by titles."""
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
    sys.stdin.read()  # ends when the parent closes it, or is gone
    end_all(sys.argv[1], parent)
