"""The artifact store as an agent has it: opened when it can be, let go of when it can't be used any more."""

import threading
from collections.abc import Callable
from pathlib import Path

from jobs.errors import BadSetting, StorageUnusable
from workers import store_mark
from workers.artifacts import ArtifactStore, Location
from workers.artifacts.locations import folder_of

CACHE = Path("cache", "artifacts")


class StoreAccess:
    """`store` or `trouble`. What is remote is opened in a thread, for that may take a while; threads may share it."""

    def __init__(self, where: Location, data: Path, mark: str | None, changed: Callable[[], None]) -> None:
        """With a `mark` it has to be the store that has it; `changed` is called, from any thread, at each change."""
        self._where, self._cache, self._mark, self._changed = where, data / CACHE, mark, changed
        self._lock = threading.Lock()
        self._is_settled = threading.Event()  #: nobody looks at it
        self._is_settled.set()
        self.store: ArtifactStore | None = None
        self.trouble: str | None = f"the artifact store {where} is being opened"
        self.look()

    def look(self) -> None:
        """Open it, if it is not open and nobody is about to."""
        if self.store is None:
            self._begin(self._open)

    def settled(self) -> ArtifactStore | None:
        """The store, once it is known whether it can be used."""
        self._is_settled.wait()
        return self.store

    def doubt(self) -> None:
        """Something could not be had of it: let go of it, if it can't be used as a whole."""
        self._begin(self._expect)

    def _begin(self, act: Callable[[], None]) -> None:
        with self._lock:
            if not self._is_settled.is_set():
                return
            self._is_settled.clear()
        if folder_of(self._where) is not None:
            self._do(act)
        else:
            threading.Thread(target=self._do, args=[act], name="store", daemon=True).start()

    def _do(self, act: Callable[[], None]) -> None:
        before = self.trouble
        try:
            act()
        except (StorageUnusable, BadSetting) as error:
            self.store, self.trouble = None, str(error)
        finally:
            self._is_settled.set()
        if self.trouble != before:
            self._changed()

    def _open(self) -> None:
        if self._mark is not None and store_mark.read(self._where) != self._mark:
            remedy = "mount the head's there" if folder_of(self._where) else "use what the head uses to reach it"
            raise StorageUnusable(str(self._where), f"it is not the head's artifact store here; {remedy}")
        store = ArtifactStore(self._where, self._cache)
        store.expect()
        self.store, self.trouble = store, None

    def _expect(self) -> None:
        if self.store is not None:
            self.store.expect()
