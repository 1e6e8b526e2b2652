"""Resolves toolchains to locks: once, in the background; locks are stored, and used until they are stale."""

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from db.store import Snapshot, Store, StoredLock, UnresolvedToolchain
from jobs.errors import HaloError, IndexUnreachable, StorageUnusable, ToolchainUnusable
from jobs.state import TaskState
from jobs.toolchains import DEFAULT, Lock, Toolchain
from orchestrator.scheduler.toolchain_nodes import toolchain_failure
from workers.processes.cancellation import Cancellation

#: Pauses after each failure of the network or the disk; after the last one there is no other try.
RETRY_PAUSES_S = (5.0, 20.0, 60.0)
CANCEL_S = 10.0  #: for resolutions under way to end when they are cancelled


class Resolver(Protocol):
    """Finds out the packages that make up a toolchain now."""

    def source(self, name: str) -> str:
        """Return a digest of what a toolchain is resolved from. Raises HaloError when nobody knows it any more."""

    def resolve(self, name: str, cancellation: Cancellation) -> Lock:
        """Return a toolchain's lock; may take minutes. Raises HaloError: IndexUnreachable or StorageUnusable when
        another try may succeed."""


@dataclass
class _Resolution:
    """A resolution that is under way, or that failed."""

    cancellation: Cancellation = field(default_factory=Cancellation)
    thread: threading.Thread | None = None  #: while it is under way
    failures: int = 0
    retry_at: float = 0.0
    unresolved: UnresolvedToolchain | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it is not tried again until all the tasks that need it have failed."""
        return self.unresolved is not None and self.unresolved.failure is not None


class ToolchainLocks:
    """The locks of one head; no call waits for a resolution."""

    def __init__(self, store: Store, resolver: Resolver, clock: Callable[[], float]) -> None:
        self._store, self._resolver, self._clock = store, resolver, clock
        self._resolutions: dict[str, _Resolution] = {}  #: by the toolchain's name
        self._ended: queue.SimpleQueue[tuple[_Resolution, Lock | HaloError]] = queue.SimpleQueue()
        self.wake: Callable[[], None] = lambda: None  #: called from any thread when a resolution has ended

    def has_news(self) -> bool:
        """Whether a resolution has ended, or is to be tried again."""
        retries = (resolution.retry_at for resolution in self._resolutions.values() if resolution.thread is None)
        return not self._ended.empty() or any(retry_at and self._clock() >= retry_at for retry_at in retries)

    def update(self, snapshot: Snapshot, built: Mapping[str, Toolchain]) -> Snapshot:
        """Return the snapshot with valid locks and why others are missing; start to resolve what queued tasks lack.

        `built` are the toolchains that nodes reported, by their locks' digests.
        """
        if not snapshot.toolchains and not self._resolutions:
            return snapshot
        wanted = {task.toolchain for task in snapshot.tasks if task.state is TaskState.QUEUED} - {DEFAULT}
        stale = {
            name: stored.digest
            for name, stored in snapshot.locks.items()
            if stored.lock.source != self._current_source(name)
        }
        resolved = self._store_ended(stale)
        valid = {name: stored for name, stored in snapshot.locks.items() if name not in stale}
        locks = self._add_compiler_flags({**valid, **resolved}, built)
        for name in self._resolutions.keys() - (wanted - locks.keys()):
            self._resolutions.pop(name).cancellation.cancel()
        for name in wanted - locks.keys():
            self._start(name)
        unresolved = {
            name: resolution.unresolved for name, resolution in self._resolutions.items() if resolution.unresolved
        }
        return replace(snapshot, locks=locks, unresolved=unresolved)

    def close(self) -> None:
        """Cancel what is under way."""
        threads = [resolution.thread for resolution in self._resolutions.values() if resolution.thread]
        for resolution in self._resolutions.values():
            resolution.cancellation.cancel()
        for thread in threads:
            thread.join(CANCEL_S)
        self._resolutions.clear()

    def _current_source(self, name: str) -> str | None:
        try:
            return self._resolver.source(name)
        except Exception:  # resolving it fails for the same reason, which its tasks then tell
            return None

    def _store_ended(self, stale: Mapping[str, str]) -> dict[str, StoredLock]:
        """Store the new locks; note what failed."""
        locks: dict[str, StoredLock] = {}
        while not self._ended.empty():
            resolution, outcome = self._ended.get()
            resolution.thread = None
            if isinstance(outcome, Lock):
                locks[outcome.name] = self._store.record_lock(outcome, stale.get(outcome.name))
            else:
                self._note_failure(resolution, outcome)
        return locks

    def _note_failure(self, resolution: _Resolution, error: HaloError) -> None:
        is_transient = isinstance(error, IndexUnreachable | StorageUnusable)
        if is_transient and resolution.failures < len(RETRY_PAUSES_S):
            resolution.retry_at = self._clock() + RETRY_PAUSES_S[resolution.failures]
            resolution.failures += 1
            resolution.unresolved = UnresolvedToolchain(str(error))
        else:
            resolution.retry_at = 0.0
            resolution.unresolved = UnresolvedToolchain(str(error), toolchain_failure(str(error)))

    def _add_compiler_flags(
        self, locks: Mapping[str, StoredLock], built: Mapping[str, Toolchain]
    ) -> Mapping[str, StoredLock]:
        """Return the locks with the compiler flags that nodes reported, which are stored."""
        flags: dict[str, Collection[str]] = {
            stored.digest: built[stored.digest].compiler_flags
            for stored in locks.values()
            if stored.compiler_flags is None and stored.digest in built
        }
        if not flags:
            return locks
        self._store.record_compiler_flags(flags)
        return {
            name: replace(stored, compiler_flags=frozenset(flags[stored.digest])) if stored.digest in flags else stored
            for name, stored in locks.items()
        }

    def _start(self, name: str) -> None:
        resolution = self._resolutions.setdefault(name, _Resolution())
        if resolution.thread is None and not resolution.has_failed and self._clock() >= resolution.retry_at:
            resolution.thread = threading.Thread(target=self._resolve, args=(name, resolution), name=f"resolve {name}")
            resolution.thread.daemon = True
            resolution.thread.start()

    def _resolve(self, name: str, resolution: _Resolution) -> None:
        try:
            outcome: Lock | HaloError = self._resolver.resolve(name, resolution.cancellation)
        except HaloError as error:
            outcome = error
        except Exception as error:  # at the top of the thread: tasks must not wait for ever
            outcome = ToolchainUnusable(name, "can't be resolved", f"{type(error).__name__}: {error}")
        self._ended.put((resolution, outcome))
        self.wake()
