"""Where the ranks of a program wait for each other, and leave word of why one of them failed."""

from datetime import timedelta
from enum import StrEnum

from torch._C._distributed_c10d import Store, TCPStore

#: For a peer in a collective: one that is gone or hangs ends the others after this.
COLLECTIVE_TIMEOUT = timedelta(seconds=60)
#: For ranks that have not started yet, or load their shards. A rank that fails calls the others off, a node that is
#: lost ends its gang, and an attempt has a limit of its own.
PATIENCE = timedelta(days=7)
GO, STOP = "go", "stop"


class Place(StrEnum):
    """Where all ranks wait for all others, in this order."""

    JOINED = "joined"
    LOADED = "loaded"
    DONE = "done"
    LEFT = "left"


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

    def __init__(self, host: str, port: int, size: int, patience: timedelta = PATIENCE) -> None:
        self.store: Store = TCPStore(host, port, is_master=False, timeout=patience)
        self._size = size

    def arrive(self, place: Place) -> None:
        """Be at a place without waiting there."""
        if self.store.add(f"{place}/count", 1) == self._size:
            self.store.set(f"{place}/word", GO)

    def wait(self, place: Place, patience: timedelta = PATIENCE) -> None:
        """Return when all ranks are there. Raises LostPeers when one of them failed on the way."""
        self.store.wait([f"{place}/word"], patience)
        if self.store.get(f"{place}/word").decode() == STOP:
            raise LostPeers("another rank failed")

    def meet(self, place: Place) -> None:
        """Be at a place, and wait for the others."""
        self.arrive(place)
        self.wait(place)

    def fail(self, why: Why, message: str) -> None:
        """Leave word and call the others off; of several messages with the same cause the first one stays."""
        self.store.compare_set(f"failure/{why}", "", message)
        for place in Place:
            self.store.set(f"{place}/word", STOP)

    def failure(self) -> tuple[Why, str] | None:
        """The cause that was left here."""
        found = next((why for why in Why if self.store.check([f"failure/{why}"])), None)
        return (found, self.store.get(f"failure/{found}").decode()) if found else None
