"""The toolchains that an agent was asked to build: one after another, in a thread of its own."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from jobs.errors import HaloError, IndexUnreachable
from jobs.toolchains import Lock, Toolchain
from workers.processes import Cancellation
from workers.toolchains.environments import Environments

#: How long after each failure of the network the next try comes; after the last one no more.
TRY_AGAIN_S = (5.0, 20.0)


FORGET_AFTER_S = 1800.0  #: when a failure is past: whatever it was may have been mended


class Builds:
    """What is to be built, and what came of it; may be asked from any thread, and answers at once."""

    def __init__(
        self, environments: Environments, tell: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`tell` is called from another thread when something came of a build."""
        self._environments, self._tell, self._clock = environments, tell, clock
        self._lock = threading.Lock()
        self._wanted: queue.SimpleQueue[Lock | None] = queue.SimpleQueue()
        self._pending: set[str] = set()  #: digests
        self._told: dict[str, tuple[str, float]] = {}  #: by digest, why one can't be built, and since when
        self._new: list[Toolchain] = []  #: built, and not fetched yet
        self._cancellation = Cancellation()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, locks: Iterable[Lock]) -> Mapping[str, str]:
        """Have toolchains built that are not here; returns as `state` does. What failed is tried again."""
        with self._lock:
            for lock in locks:
                if lock.digest not in self._pending and not self._is_over.is_set():
                    self._pending.add(lock.digest)
                    if lock.digest in self._told and self._told[lock.digest][0]:
                        del self._told[lock.digest]
                    self._wanted.put(lock)
            if self._pending and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="build toolchains", daemon=True)
                self._thread.start()
        return self.state

    @property
    def state(self) -> Mapping[str, str]:
        """By lock, why it can't be built; empty: it is here. Not what is under way, nor what failed long ago."""
        past = self._clock() - FORGET_AFTER_S
        with self._lock:
            return {digest: why for digest, (why, since) in self._told.items() if not why or since > past}

    @property
    def has_news(self) -> bool:
        """Whether something was built that was not fetched yet."""
        return bool(self._new)

    def fetch(self) -> list[Toolchain]:
        """What was built since the last call."""
        with self._lock:
            new, self._new = self._new, []
            return new

    def check(self, digest: str) -> None:
        """Look whether a toolchain is still here: somebody may have removed it."""
        if self._environments.toolchain(digest) is None:
            with self._lock:
                self._told.pop(digest, None)

    def stop(self) -> None:
        """End what is under way and build nothing more."""
        self._is_over.set()
        self._cancellation.cancel()
        self._wanted.put(None)

    def _work(self) -> None:
        with suppress(OSError):
            self._environments.gc()  # what nobody has used for long makes room
        while (lock := self._wanted.get()) and not self._is_over.is_set():
            built, why = self._built(lock)
            with self._lock:
                self._pending.discard(lock.digest)
                self._told[lock.digest] = why, self._clock()
                self._new += [built] if built else []
            self._tell()

    def _built(self, lock: Lock) -> tuple[Toolchain | None, str]:
        """A toolchain, or why it can't be built."""
        for pause_s in (*TRY_AGAIN_S, None):
            try:
                return self._environments.build(lock, self._cancellation), ""
            except IndexUnreachable as error:
                if pause_s is None or self._is_over.wait(pause_s):
                    return None, str(error)
            except HaloError as error:
                return None, str(error)
            except Exception as error:  # the border: whoever waits for it is told
                return None, f"toolchain {lock.name} can't be built: {type(error).__name__}: {error}"
        raise AssertionError("the last try returns")
