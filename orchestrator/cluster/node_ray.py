"""The raylet of a node. It lives no longer than the `haloctl node` that started it."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.errors import ClusterUnreachable
from orchestrator.cluster import ray_start
from orchestrator.cluster.raylet_keeper import UP
from orchestrator.cluster.signals import Signals
from workers import guard

KEEPER = (sys.executable, "-m", "orchestrator.cluster.raylet_keeper")


class NodeRay:
    """A raylet under its keeper."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it; `until_up` tells how that went."""
        self._log = log
        with log.open("wb") as output:
            self._keeper = subprocess.Popen(
                [*KEEPER, *command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd="/",
                start_new_session=True,  # a Ctrl-C is not for it
            )
        assert self._keeper.stdout is not None
        self.news = self._keeper.stdout.fileno()  #: can be read when it is up, and when it has ended

    def until_up(self, signals: Signals, timeout_s: float, where: str) -> bool:
        """Wait until the node has joined; False where a signal came before. Raises ClusterUnreachable."""
        if not signals.wait([self.news], timeout_s):
            raise ClusterUnreachable(where, f"`ray start` did not come to an end; {self._log} has what it said")
        if signals.count:
            return False
        if os.read(self.news, len(UP)) != UP:
            ray_start.expect_success(self._keeper.wait() or 1, self._log, where)
        return True

    def close(self) -> None:
        """End it, and everything that it started."""
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()
        guard.end_descendants(guard.Reaped())  # what a killed keeper left was adopted by this process
