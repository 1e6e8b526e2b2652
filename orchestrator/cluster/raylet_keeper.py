"""Stands between `haloctl node` and its raylet, so that nothing is left of the raylet when either of the two is killed.

    haloctl node == stdin, stdout ==> keeper --> raylet --> agent, and all that it runs

`python -m orchestrator.cluster.raylet_keeper COMMAND...` runs a `ray start`, says `UP` on stdout when that went well,
and ends when the raylet has, or when stdin is at its end: `haloctl node` is gone, or wants an end. It adopts orphans,
so having no child left is having nothing left. Its exit code is that of `ray start`; stderr is the log.
"""

import os
import select
import signal
import sys
from pathlib import Path

from workers import guard

UP = b"up\n"
ABOVE = 0  #: the file at whose end it has to end
RAYLET = "raylet"


class Keeper:
    """What it waits for: the end of a child, or of those above."""

    def __init__(self) -> None:
        guard.adopt_orphans()
        self._wakeup = guard.wakeup_of_children()
        self._reaped = guard.Reaped()
        self._poll = select.poll()
        for descriptor in (ABOVE, self._wakeup):
            self._poll.register(descriptor, select.POLLIN)

    def run(self, command: list[str]) -> int:
        """Keep a raylet until its end; returns the exit code of what started it."""
        starter = _spawn(command)
        if self._has_ended(starter) and self._reaped.exit_codes[starter] == 0:
            for raylet in _raylets():
                os.write(1, UP)
                self._has_ended(raylet)
        guard.end_descendants(self._reaped)
        return self._reaped.exit_codes[starter]

    def _has_ended(self, pid: int) -> bool:
        """Wait for a process's end; False where those above are gone before."""
        while self._reaped.reap() and pid not in self._reaped.exit_codes:
            for descriptor, _ in self._poll.poll():
                if descriptor == ABOVE:
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
    """The raylet among this process's children, adopted from `ray start`."""
    own = os.getpid()
    return [pid for pid, parent in guard.parents() if parent == own and _program(pid) == RAYLET]


def _program(pid: int) -> str:
    try:
        return Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])).name
    except OSError:
        return ""


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, lambda number, frame: None)  # `haloctl node` decides when it is over
    sys.exit(Keeper().run(sys.argv[1:]))
