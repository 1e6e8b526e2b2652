"""The raylet of a node, which lives no longer than the `haloctl node` that started it."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.errors import ClusterUnreachable
from orchestrator.ray_cluster import ray_start
from orchestrator.ray_cluster.raylet_supervisor import UP
from orchestrator.ray_cluster.signal_queue import Signals
from workers.processes import supervisor

SUPERVISOR = (sys.executable, "-m", "orchestrator.ray_cluster.raylet_supervisor")


class NodeRay:
    """A raylet under its supervisor process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the raylet; `wait_until_up` tells the outcome."""
        self._log = log
        with log.open("wb") as output:
            self._supervisor = subprocess.Popen(
                [*SUPERVISOR, *command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd="/",
                start_new_session=True,  # Ctrl-C must not reach it
            )
        assert self._supervisor.stdout is not None
        self.news = self._supervisor.stdout.fileno()  #: readable when the raylet is up, and when it has ended

    def wait_until_up(self, signals: Signals, timeout_s: float, where: str) -> bool:
        """Wait until the node has joined; return False if a signal came first. Raises ClusterUnreachable."""
        if not signals.wait([self.news], timeout_s):
            raise ClusterUnreachable(where, f"`ray start` did not end in time; see {self._log}")
        if signals.count:
            return False
        if os.read(self.news, len(UP)) != UP:
            ray_start.expect_success(self._supervisor.wait() or 1, self._log, where)
        return True

    def close(self) -> None:
        """End the raylet and everything that it started."""
        assert self._supervisor.stdin is not None and self._supervisor.stdout is not None
        self._supervisor.stdin.close()
        self._supervisor.wait()
        self._supervisor.stdout.close()
        supervisor.end_descendants(
            supervisor.ReapedChildren()
        )  # this process has adopted what a killed supervisor left
