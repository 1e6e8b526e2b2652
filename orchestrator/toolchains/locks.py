"""What the toolchains of tasks stand for: resolved once in the background, stored, and used until that is stale."""

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from db.store import KeptLock, Snapshot, Store, Unresolved
from jobs.errors import HaloError, IndexUnreachable, StorageUnusable, ToolchainUnusable
from jobs.state import TaskState
from jobs.toolchains import DEFAULT, Lock, Toolchain
from orchestrator.scheduling.under import failure_of
from workers.processes import Cancellation

#: How long after each failure of the network or the disk the next try comes; after the last one no more.
TRY_AGAIN_S = (5.0, 20.0, 60.0)
END_S = 10.0  #: what tries that are under way get to end when they are cancelled


class Resolver(Protocol):
    """Finds out what packages a toolchain is made of now."""

    def source(self, name: str) -> str:
        """A digest of what a toolchain would be resolved from; raises HaloError where nobody knows it any more."""

    def resolve(self, name: str, cancellation: Cancellation) -> Lock:
        """What it is made of; may take minutes. Raises HaloError, of the kinds IndexUnreachable and StorageUnusable
        where another try may go better."""


@dataclass
class _Try:
    """An unfinished resolution, or what became of the last one."""

    cancellation: Cancellation = field(default_factory=Cancellation)
    thread: threading.Thread | None = None  #: while it is under way
    failures: int = 0
    again_at: float = 0.0
    unresolved: Unresolved | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it is not tried again before all that wants it now has failed."""
        return self.unresolved is not None and self.unresolved.failure is not None


class Locks:
    """Those of the head; what it is asked returns at once."""

    def __init__(self, store: Store, resolver: Resolver, clock: Callable[[], float]) -> None:
        self._store, self._resolver, self._clock = store, resolver, clock
        self._tries: dict[str, _Try] = {}  #: by name
        self._came: queue.SimpleQueue[tuple[_Try, Lock | HaloError]] = queue.SimpleQueue()
        self.wake: Callable[[], None] = lambda: None  #: called from any thread when something came

    def has_news(self) -> bool:
        """Whether there is something to decide anew: a try came to something, or it is time for another one."""
        waits = (one for one in self._tries.values() if one.thread is None and one.again_at)
        return not self._came.empty() or any(self._clock() >= one.again_at for one in waits)

    def tend(self, snapshot: Snapshot, built: Mapping[str, Toolchain]) -> Snapshot:
        """The snapshot with the locks that hold, and why others don't; `built` is what nodes tell of theirs, by digest.

        Begins to resolve what queued tasks lack.
        """
        if not snapshot.toolchains and not self._tries:
            return snapshot
        wanted = {task.toolchain for task in snapshot.tasks if task.state is TaskState.QUEUED} - {DEFAULT}
        stale = {name: kept.digest for name, kept in snapshot.locks.items() if kept.lock.source != self._source(name)}
        came = self._take_in(stale)
        known = {name: kept for name, kept in snapshot.locks.items() if name not in stale}
        locks = self._with_flags({**known, **came}, built)
        for name in self._tries.keys() - (wanted - locks.keys()):
            self._tries.pop(name).cancellation.cancel()
        for name in wanted - locks.keys():
            self._try(name)
        unresolved = {name: one.unresolved for name, one in self._tries.items() if one.unresolved}
        return replace(snapshot, locks=locks, unresolved=unresolved)

    def close(self) -> None:
        """End what is under way."""
        threads = [one.thread for one in self._tries.values() if one.thread]
        for one in self._tries.values():
            one.cancellation.cancel()
        for thread in threads:
            thread.join(END_S)
        self._tries.clear()

    def _source(self, name: str) -> str | None:
        try:
            return self._resolver.source(name)
        except HaloError:
            return None

    def _take_in(self, stale: Mapping[str, str]) -> dict[str, KeptLock]:
        """Store what was resolved; note what could not be."""
        kept: dict[str, KeptLock] = {}
        while not self._came.empty():
            tried, found = self._came.get()
            tried.thread = None
            if isinstance(found, Lock):
                kept[found.name] = self._store.keep_lock(found, stale.get(found.name))
            else:
                self._note(tried, found)
        return kept

    def _note(self, tried: _Try, error: HaloError) -> None:
        may_go_better = isinstance(error, IndexUnreachable | StorageUnusable)
        if may_go_better and tried.failures < len(TRY_AGAIN_S):
            tried.again_at = self._clock() + TRY_AGAIN_S[tried.failures]
            tried.failures += 1
            tried.unresolved = Unresolved(str(error))
        else:
            tried.again_at, tried.unresolved = 0.0, Unresolved(str(error), failure_of(str(error)))

    def _with_flags(self, locks: Mapping[str, KeptLock], built: Mapping[str, Toolchain]) -> Mapping[str, KeptLock]:
        """The locks with what nodes have told of their compilers, which is stored."""
        flags: dict[str, Collection[str]] = {
            kept.digest: built[kept.digest].compiler_flags
            for kept in locks.values()
            if kept.compiler_flags is None and kept.digest in built
        }
        if not flags:
            return locks
        self._store.keep_compiler_flags(flags)
        told = {name: flags[kept.digest] for name, kept in locks.items() if kept.digest in flags}
        return {**locks, **{name: replace(locks[name], compiler_flags=frozenset(said)) for name, said in told.items()}}

    def _try(self, name: str) -> None:
        tried = self._tries.setdefault(name, _Try())
        if tried.thread is None and not tried.has_failed and self._clock() >= tried.again_at:
            tried.thread = threading.Thread(target=self._resolve, args=(name, tried), name=f"resolve {name}")
            tried.thread.daemon = True
            tried.thread.start()

    def _resolve(self, name: str, tried: _Try) -> None:
        try:
            found: Lock | HaloError = self._resolver.resolve(name, tried.cancellation)
        except HaloError as error:
            found = error
        except Exception as error:  # the border of the thread: tasks must not wait for ever
            found = ToolchainUnusable(name, "can't be resolved", f"{type(error).__name__}: {error}")
        self._came.put((tried, found))
        self.wake()
