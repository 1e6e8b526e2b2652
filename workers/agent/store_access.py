"""The agent's access to the artifact store: opened once it can be used, closed once it can't be any more."""

import threading
from collections.abc import Callable
from pathlib import Path

from jobs.errors import BadSetting, StorageUnusable
from workers import daemon_log
from workers.agent import store_mark
from workers.artifacts import ArtifactStore, Location
from workers.artifacts.locations import folder_of
from workers.attempts import publishing

logger = daemon_log.logger(__name__)

CACHE = Path("cache", "artifacts")


class StoreAccess:
    """The `store`, or the `trouble` with it. A remote one is opened in a thread, for that may take a while.

    Threads may share it.
    """

    def __init__(self, where: Location, data: Path, mark: str | None, on_change: Callable[[], None]) -> None:
        """With a `mark` it must be the store that has it; `on_change` is called, from any thread, at each change."""
        self._where, self._cache, self._mark, self._on_change = where, data / CACHE, mark, on_change
        self._lock = threading.Lock()
        self._is_idle = threading.Event()  #: nobody is opening or checking the store
        self._is_idle.set()
        self.store: ArtifactStore | None = None
        self.trouble: str | None = f"the artifact store {where} is being opened"
        self.open_if_needed()

    def open_if_needed(self) -> None:
        """Open the store, unless it is open or being opened."""
        if self.store is None:
            self._begin(self._open)

    def wait_for_store(self) -> ArtifactStore | None:
        """Return the store, once it is known whether it can be used; None where it can't."""
        self._is_idle.wait()
        return self.store

    def check_store(self) -> None:
        """Close the store if it can't be read or written as a whole: something could not."""
        self._begin(self._check)

    def _begin(self, action: Callable[[], None]) -> None:
        with self._lock:
            if not self._is_idle.is_set():
                return
            self._is_idle.clear()
        if folder_of(self._where) is not None:
            self._run(action)
        else:
            threading.Thread(target=self._run, args=[action], name="store", daemon=True).start()

    def _run(self, action: Callable[[], None]) -> None:
        trouble_before = self.trouble
        try:
            action()
        except (StorageUnusable, BadSetting) as error:
            self.store, self.trouble = None, str(error)
        finally:
            self._is_idle.set()
        if self.trouble != trouble_before:
            if self.trouble:
                logger.warning("%s", self.trouble)
            else:
                logger.info("the artifact store %s can be used", self._where)
            self._on_change()

    def _open(self) -> None:
        if self._mark is not None and store_mark.read(self._where) != self._mark:
            remedy = "mount the head's there" if folder_of(self._where) else "use what the head uses to reach it"
            raise StorageUnusable(str(self._where), f"it is not the head's artifact store here; {remedy}")
        publishing.store_wait_s()  # raises BadSetting
        store = ArtifactStore(self._where, self._cache)
        store.expect_writable()
        self.store, self.trouble = store, None

    def _check(self) -> None:
        if self.store is not None:
            self.store.expect_writable()
