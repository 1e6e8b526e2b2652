"""Renews the agents' leases, whatever the head is busy with."""

import threading
from collections.abc import Callable, Iterable

from orchestrator.ray_executor.agent_client import AgentClient

#: Supervisors count from when they are renewed, agents from the answer before that (see Agent.renew): with the second
#: that a supervisor gives to what it ends, this is what the margin is for.
PART_OF_LEASE = 2 / 15


class LeaseRenewal:
    """A thread that renews the leases of all clients, from its construction until `close`."""

    def __init__(self, lease_s: float, clients: Callable[[], Iterable[AgentClient]]) -> None:
        self._every_s, self._clients = lease_s * PART_OF_LEASE, clients
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-renewal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop renewing."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            for client in list(self._clients()):
                client.renew()
