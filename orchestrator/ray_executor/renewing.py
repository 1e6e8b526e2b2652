"""Renewing agents' leases, whatever the head is busy with."""

import threading
from collections.abc import Callable, Iterable

from orchestrator.ray_executor.line import Line

#: Guards count from when they are renewed, agents from the answer before that (see Agent.renew): with the second that
#: a guard gives to what it ends, this is what the margin is for.
PART_OF_LEASE = 2 / 15


class Renewing:
    """A thread that renews the leases of all lines, from when it is made until `close`."""

    def __init__(self, lease_s: float, lines: Callable[[], Iterable[Line]]) -> None:
        self._every_s, self._lines = lease_s * PART_OF_LEASE, lines
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="renewing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Renew nothing more."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            for line in list(self._lines()):
                line.renew()
