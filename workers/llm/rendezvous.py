"""Where the ranks of a program wait for each other, and leave word of why one of them failed."""

import socket
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from typing import Self

from torch._C._distributed_c10d import Store, TCPStore

#: For a peer in a collective: one that is gone or hangs ends the others after this.
COLLECTIVE_TIMEOUT = timedelta(seconds=60)
#: For ranks that have not started yet, or load their shards. A rank that fails calls the others off, a node that is
#: lost ends its gang, and an attempt has a limit of its own.
PATIENCE = timedelta(days=7)
GO, STOP = "go", "stop"


class Place(StrEnum):
    """Where there is something to wait for, in this order."""

    READY = "ready"  #: the first node is: what has to be done before has been done
    JOINED = "joined"  #: this and what follows: all ranks are there
    LOADED = "loaded"
    DONE = "done"
    LEFT = "left"  #: nobody needs the store any more: the watches of all nodes have left it too


class Why(StrEnum):
    """What a failure tells of its cause; what comes first is the cause of those after it."""

    BAD_INPUT = "bad_input"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"  #: of its peers: they say why themselves, or are gone


class LostPeers(Exception):
    """A rank was called off, because another one failed."""


class Rendezvous:
    """One process's view of the store that the first node keeps for all `size` ranks."""

    def __init__(self, store: Store, size: int) -> None:
        self.store, self._size = store, size

    @classmethod
    def host(cls, listener: socket.socket, size: int) -> Self:
        """Keep the store, in this process, as long as this lives."""
        address, port = listener.getsockname()[:2]
        fd = listener.detach()
        return cls(TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd), size)

    @classmethod
    def at(cls, address: str, port: int, size: int, patience: timedelta = PATIENCE) -> Self:
        """Reach the store. Raises torch's DistError when it is not there in time."""
        return cls(TCPStore(address, port, is_master=False, timeout=patience), size)

    def say(self, place: Place, word: str = GO) -> None:
        """Let those go on who wait for a place, or call them off."""
        self.store.set(place, word)

    def wait(self, place: Place, patience: timedelta = PATIENCE) -> None:
        """Return when that place is reached. Raises LostPeers when a rank failed on the way."""
        self.store.wait([place], patience)
        if self.store.get(place).decode() == STOP:
            raise LostPeers("another rank failed")

    def arrive(self, place: Place, others: int = 0) -> None:
        """Be at a place without waiting there; all ranks are expected, and so many others."""
        if self.store.add(f"{place}/count", 1) == self._size + others:
            self.say(place)

    def meet(self, place: Place) -> None:
        """Be at a place, and wait for the others."""
        self.arrive(place)
        self.wait(place)

    def fail(self, why: Why, message: str) -> None:
        """Leave word and call the others off; of several messages with the same cause the first one stays."""
        self.store.compare_set(f"failure/{why}", "", message)
        for place in Place:
            self.say(place, STOP)

    def settle(self, nodes: int) -> tuple[Why, str] | None:
        """The cause, once all nodes have left word of what they saw; the store stays until all of them have asked."""
        are_all_here = self._meet_nodes("settled", nodes)
        found = self.failure()
        if are_all_here:
            self._meet_nodes("asked", nodes)
        return found

    def _meet_nodes(self, name: str, nodes: int) -> bool:
        if self.store.add(f"{name}/count", 1) == nodes:
            self.store.set(name, GO)
        with suppress(RuntimeError):  # a node that is gone is not waited for
            self.store.wait([name])
            return True
        return False

    def failure(self) -> tuple[Why, str] | None:
        """The cause that was left here."""
        found = next((why for why in Why if self.store.check([f"failure/{why}"])), None)
        return (found, self.store.get(f"failure/{found}").decode()) if found else None
