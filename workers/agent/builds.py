"""The builder of toolchains that an agent is asked for: one after another, in a thread of its own."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from jobs.errors import HaloError, IndexUnreachable
from jobs.toolchains import Lock, Toolchain
from workers import daemon_log
from workers.processes.cancellation import Cancellation
from workers.toolchains.environments import Environments

logger = daemon_log.logger(__name__)

RETRY_PAUSES_S = (5.0, 20.0)  #: before each further try when the package index can't be reached
FORGET_FAILURE_AFTER_S = 1800.0  #: its cause may have been removed meanwhile


class ToolchainBuilder:
    """Builds toolchains and keeps what came of it. Its methods return at once, and may be called from any thread."""

    def __init__(
        self, environments: Environments, on_change: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`on_change` is called from another thread after each build."""
        self._environments, self._on_change, self._clock = environments, on_change, clock
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Lock | None] = queue.SimpleQueue()
        self._pending: set[str] = set()  #: digests
        self._outcomes: dict[str, tuple[str, float]] = {}  #: by digest, why it can't be built, and since when
        self._built: list[Toolchain] = []  #: not taken yet
        self._cancellation = Cancellation()
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def request(self, locks: Iterable[Lock]) -> Mapping[str, str]:
        """Queue toolchains that are not built, those also that failed before; returns `state`."""
        with self._lock:
            for lock in locks:
                if lock.digest not in self._pending and not self._is_stopped.is_set():
                    self._pending.add(lock.digest)
                    if lock.digest in self._outcomes and self._outcomes[lock.digest][0]:
                        del self._outcomes[lock.digest]
                    self._queue.put(lock)
            if self._pending and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="build toolchains", daemon=True)
                self._thread.start()
        return self.state

    @property
    def state(self) -> Mapping[str, str]:
        """By digest why a toolchain can't be built; empty for one that is built.

        Without those that are under way, and those that failed long ago.
        """
        oldest = self._clock() - FORGET_FAILURE_AFTER_S
        with self._lock:
            return {digest: why for digest, (why, since) in self._outcomes.items() if not why or since > oldest}

    @property
    def has_news(self) -> bool:
        """Whether a toolchain was built that `take_built` has not returned yet."""
        return bool(self._built)

    def take_built(self) -> list[Toolchain]:
        """Return the toolchains that were built since the last call."""
        with self._lock:
            built, self._built = self._built, []
            return built

    def check(self, digest: str) -> None:
        """Check whether a toolchain is still there: somebody may have removed it."""
        if self._environments.toolchain(digest) is None:
            with self._lock:
                self._outcomes.pop(digest, None)

    def stop(self) -> None:
        """Cancel the current build and start no other."""
        self._is_stopped.set()
        self._cancellation.cancel()
        self._queue.put(None)

    def _work(self) -> None:
        with suppress(OSError):
            self._environments.gc()  # what nobody has used for long makes room
        while (lock := self._queue.get()) and not self._is_stopped.is_set():
            toolchain, why = self._build(lock)
            if why:
                logger.warning("%s", why)
            else:
                logger.info("toolchain %s is built", lock.name)
            with self._lock:
                self._pending.discard(lock.digest)
                self._outcomes[lock.digest] = why, self._clock()
                self._built += [toolchain] if toolchain else []
            self._on_change()

    def _build(self, lock: Lock) -> tuple[Toolchain | None, str]:
        """Return a toolchain, or why it can't be built."""
        import tenacity

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(IndexUnreachable),
            wait=tenacity.wait_chain(*map(tenacity.wait_fixed, RETRY_PAUSES_S)),
            stop=tenacity.stop_after_attempt(1 + len(RETRY_PAUSES_S)) | tenacity.stop_when_event_set(self._is_stopped),
            sleep=tenacity.sleep_using_event(self._is_stopped),
            reraise=True,
        )
        try:
            return retrying(self._environments.build, lock, self._cancellation), ""
        except HaloError as error:
            return None, str(error)
        except Exception as error:  # the border: whoever waits for it is told
            return None, f"toolchain {lock.name} can't be built: {type(error).__name__}: {error}"
