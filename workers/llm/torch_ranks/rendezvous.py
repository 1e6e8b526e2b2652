"""The store through which the ranks of a program wait for each other and report why one of them failed."""

import socket
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from typing import Self

from torch._C._distributed_c10d import Store, TCPStore

#: How long a collective waits for a peer: one that is gone or hangs ends the others after this.
COLLECTIVE_TIMEOUT = timedelta(seconds=60)
#: How long ranks wait for others that have not started yet, or load their shards: practically without limit, since a
#: rank that fails stops the others, a lost node ends its gang, and an attempt has a timeout of its own.
BARRIER_TIMEOUT = timedelta(days=7)
GO, STOP = "go", "stop"


class RankBarrier(StrEnum):
    """The points at which ranks wait for each other, in order."""

    READY = "ready"  #: the first node has finished its preparation
    JOINED = "joined"  #: every rank is ready to join the process group
    LOADED = "loaded"  #: every rank has loaded its shard
    DONE = "done"  #: every rank has finished its work
    LEFT = "left"  #: neither ranks nor the monitors of the nodes need the store any more


class RankFailureCause(StrEnum):
    """The cause of a rank's failure; of several, the first in this order caused the others."""

    BAD_INPUT = "bad_input"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"  #: it lost its peers, which report their own cause or are gone


class PeerRankFailed(Exception):
    """This rank was stopped because another one failed."""


class Rendezvous:
    """One process's client of the store that the first node hosts for all `size` ranks."""

    def __init__(self, store: Store, size: int) -> None:
        self.store, self._size = store, size

    @classmethod
    def host(cls, listener: socket.socket, size: int) -> Self:
        """Host the store in this process, as long as the returned object lives."""
        address, port = listener.getsockname()[:2]
        fd = listener.detach()
        return cls(TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd), size)

    @classmethod
    def connect(cls, address: str, port: int, size: int, timeout: timedelta = BARRIER_TIMEOUT) -> Self:
        """Connect to the store. Raises torch's DistError when it is not reachable in time."""
        return cls(TCPStore(address, port, is_master=False, timeout=timeout), size)

    def open(self, barrier: RankBarrier) -> None:
        """Release those who wait at a barrier."""
        self.store.set(barrier, GO)

    def wait(self, barrier: RankBarrier, timeout: timedelta = BARRIER_TIMEOUT) -> None:
        """Return when the barrier is open. Raises PeerRankFailed when a rank failed before that."""
        self.store.wait([barrier], timeout)
        if self.store.get(barrier).decode() == STOP:
            raise PeerRankFailed("another rank failed")

    def arrive(self, barrier: RankBarrier, others: int = 0) -> None:
        """Arrive at a barrier without waiting; it opens when all ranks and this many others have arrived."""
        if self.store.add(f"{barrier}/count", 1) == self._size + others:
            self.open(barrier)

    def meet(self, barrier: RankBarrier) -> None:
        """Arrive at a barrier and wait for the others."""
        self.arrive(barrier)
        self.wait(barrier)

    def fail(self, cause: RankFailureCause, message: str) -> None:
        """Report a failure and stop the others; of several messages with the same cause the first one stays."""
        self.store.compare_set(f"failure/{cause}", "", message)
        for barrier in RankBarrier:
            self.store.set(barrier, STOP)

    def settle(self, nodes: int) -> tuple[RankFailureCause, str] | None:
        """Return the cause and its message once all nodes have reported theirs; None when none was reported.

        Nodes leave together, so that the store stays until all of them have read it.
        """
        are_all_present = self._meet_nodes("settled", nodes)
        failure = self._failure()
        if are_all_present:
            self._meet_nodes("asked", nodes)
        return failure

    def _meet_nodes(self, name: str, nodes: int) -> bool:
        if self.store.add(f"{name}/count", 1) == nodes:
            self.store.set(name, GO)
        with suppress(RuntimeError):  # the store's timeout: a node that is gone is not waited for
            self.store.wait([name])
            return True
        return False

    def _failure(self) -> tuple[RankFailureCause, str] | None:
        cause = next((cause for cause in RankFailureCause if self.store.check([f"failure/{cause}"])), None)
        return (cause, self.store.get(f"failure/{cause}").decode()) if cause else None
