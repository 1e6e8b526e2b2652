"""What is known of toolchains: their rows, what they were resolved to, where that is built."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from db import machines, toolchains
from jobs.errors import NothingToDo
from jobs.toolchains import DEFAULT, Lock, Row, Toolchain, find, is_known, source_of
from orchestrator.context import Context
from orchestrator.toolchains import site_toolchains
from workers.environment import probe_toolchain
from workers.processes import Cancellation
from workers.toolchains.environments import Built, Environments
from workers.toolchains.resolving import PYTHON, resolve


@dataclass(frozen=True)
class KnownToolchain:
    """One toolchain, as this machine and the database know it."""

    name: str
    row: Row
    versions: Mapping[str, str]  #: that count; empty: it was never resolved
    lock: Lock | None
    resolved_at: datetime | None
    is_stale: bool  #: its row or what it lies over has changed: it is resolved anew when it is next needed
    here: Built | None
    nodes: Mapping[str, str]  #: those that tried to build it, with why it can't be used there; empty: it can


class Toolchains:
    """All that one command looks up."""

    def __init__(self, context: Context) -> None:
        self.rows = site_toolchains.rows(context.settings)
        self.environments = Environments(context.settings.data)
        self._context = context
        self._base = probe_toolchain(context.settings.cache)
        self._kept = toolchains.all_current(context.database)
        self._nodes = machines.nodes(context.database)

    def all(self) -> list[KnownToolchain]:
        """Those that have a row, then those of families that were resolved."""
        more = sorted(self._kept.keys() - self.rows.keys())  # a site may have had rows that it has no more
        return [self.one(name) for name in [*self.rows, *more] if is_known(name, self.rows)]

    def one(self, name: str) -> KnownToolchain:
        """One of them; raises UnknownToolchain."""
        row, kept = find(name, self.rows), self._kept.get(name)
        if name == DEFAULT:
            return KnownToolchain(name, row, self._base.versions, None, None, False, None, {})
        if kept is None:
            return KnownToolchain(name, row, {}, None, None, False, None, {})
        digest = kept.lock.digest
        nodes = {node.id: node.toolchains[digest] for node in self._nodes if digest in node.toolchains}
        is_stale = kept.lock.source != source_of(row, PYTHON, self._base)
        here = self.environments.built(digest)
        return KnownToolchain(name, row, kept.lock.versions, kept.lock, kept.resolved_at, is_stale, here, nodes)

    def current(self, name: str, cancellation: Cancellation | None = None) -> Lock:
        """What a name stands for: resolved now where it never was, or where what it is resolved from has changed."""
        known = self.one(name)
        return known.lock if known.lock and not known.is_stale else self.update(name, cancellation)

    def update(self, name: str, cancellation: Cancellation | None = None) -> Lock:
        """Resolve a name anew; raises NothingToDo for the default one."""
        row = find(name, self.rows)
        if name == DEFAULT:
            raise NothingToDo(f"{DEFAULT} is what haloctl is installed in: it is neither resolved nor built")
        lock = resolve(name, row, self._base, self._context.settings.cache, cancellation)
        earlier = self._kept.get(name)
        self._kept[name] = self._context.store.keep_lock(lock, earlier.lock.digest if earlier else None)
        return self._kept[name].lock

    def built(self, lock: Lock, cancellation: Cancellation | None = None) -> Toolchain:
        """A lock's environment here; what its compiler offers is remembered."""
        found = self.environments.build(lock, cancellation)
        self._context.store.keep_compiler_flags({lock.digest: found.compiler_flags})
        return found
