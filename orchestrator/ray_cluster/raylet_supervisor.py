"""Runs between `haloctl node` and its raylet, so that nothing is left of the raylet when either of them is killed.

    haloctl node == stdin, stdout ==> supervisor --> raylet --> agent, and all that it runs

`python -m orchestrator.ray_cluster.raylet_supervisor COMMAND...` runs `ray start`, writes `UP` to stdout when that
succeeds, and ends when the raylet has, or at the end of stdin: `haloctl node` is gone, or closed it. It adopts
orphans, so having no child left is having nothing left. Its exit code is that of `ray start`; stderr is the log.
"""

import os
import select
import signal
import sys
from pathlib import Path

from workers.processes import proc, supervisor

UP = b"up\n"
PARENT = 0  #: stdin, which ends with `haloctl node`
RAYLET = "raylet"


class RayletSupervisor:
    """Waits for the end of a child process, or of the parent."""

    def __init__(self) -> None:
        supervisor.adopt_orphans()
        self._wakeup = supervisor.child_exit_fd()
        self._reaped = supervisor.ReapedChildren()
        self._poll = select.poll()
        for descriptor in (PARENT, self._wakeup):
            self._poll.register(descriptor, select.POLLIN)

    def run(self, command: list[str]) -> int:
        """Supervise a raylet until its end; return the exit code of the command that starts it."""
        starter = _spawn(command)
        if self._has_ended(starter) and self._reaped.exit_codes[starter] == 0:
            for raylet in _raylets():
                os.write(1, UP)
                self._has_ended(raylet)
        supervisor.end_descendants(self._reaped)
        return self._reaped.exit_codes[starter]

    def _has_ended(self, pid: int) -> bool:
        """Wait for a process's end; return False if the parent is gone first."""
        while self._reaped.reap() and pid not in self._reaped.exit_codes:
            for descriptor, _ in self._poll.poll():
                if descriptor == PARENT:
                    return False
                os.read(self._wakeup, 4096)
        return True


def _spawn(command: list[str]) -> int:
    return os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)],
        setsigdef=(signal.SIGPIPE,),
        setsid=True,
    )


def _raylets() -> list[int]:
    """Return the raylets among this process's children, adopted from `ray start`."""
    parent_pid = os.getpid()
    return [pid for pid, parent in proc.parents() if parent == parent_pid and _program(pid) == RAYLET]


def _program(pid: int) -> str:
    try:
        return Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])).name
    except OSError:
        return ""


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, lambda number, frame: None)  # `haloctl node` decides when to end
    sys.exit(RayletSupervisor().run(sys.argv[1:]))
