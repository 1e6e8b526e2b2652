"""The toolchains that this machine and the database know: specifications, locks, and where they are built."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from db.reads import machines
from db.writes import toolchains
from jobs.errors import NothingToDo
from jobs.toolchain_table import find_toolchain, is_known
from jobs.toolchains import DEFAULT, Lock, Toolchain, ToolchainSpec, source_of
from orchestrator.context import Context
from orchestrator.toolchains import site_toolchains
from workers.processes.cancellation import Cancellation
from workers.toolchain_probe import probe_toolchain
from workers.toolchains.environments import Built, Environments
from workers.toolchains.resolving import PYTHON, resolve


@dataclass(frozen=True)
class KnownToolchain:
    """A toolchain as this machine and the database know it."""

    name: str
    spec: ToolchainSpec
    versions: Mapping[str, str]  #: of the packages that are part of a result; empty: it was never resolved
    lock: Lock | None
    resolved_at: datetime | None
    is_stale: bool  #: its specification or the packages below it changed, so it is resolved again before use
    environment: Built | None  #: on this machine
    nodes: Mapping[str, str]  #: nodes that tried to build it, with why it can't be used there; an empty reason: it can


class Toolchains:
    """The toolchains, with everything that one command looks up about them."""

    def __init__(self, context: Context) -> None:
        self.specs = site_toolchains.read_toolchains(context.settings)
        self.environments = Environments(context.settings.data)
        self._context = context
        self._base = probe_toolchain(context.settings.cache)
        self._locks = toolchains.all_current(context.database)
        self._nodes = machines.nodes(context.database)

    def all(self) -> list[KnownToolchain]:
        """Return the named toolchains, then those of families that were resolved."""
        resolved = sorted(self._locks.keys() - self.specs.keys())  # the site may have removed some of them
        return [self.find(name) for name in [*self.specs, *resolved] if is_known(name, self.specs)]

    def find(self, name: str) -> KnownToolchain:
        """Return one toolchain; raises UnknownToolchain."""
        spec, resolved = find_toolchain(name, self.specs), self._locks.get(name)
        if name == DEFAULT:
            return KnownToolchain(name, spec, self._base.versions, None, None, False, None, {})
        if resolved is None:
            return KnownToolchain(name, spec, {}, None, None, False, None, {})
        lock, digest = resolved.lock, resolved.lock.digest
        nodes = {node.id: node.toolchains[digest] for node in self._nodes if digest in node.toolchains}
        is_stale = lock.source != source_of(spec, PYTHON, self._base)
        environment = self.environments.built(digest)
        return KnownToolchain(name, spec, lock.versions, lock, resolved.resolved_at, is_stale, environment, nodes)

    def current(self, name: str, cancellation: Cancellation | None = None) -> Lock:
        """Return the lock of a name, resolved now if it was never resolved or is stale."""
        known = self.find(name)
        return known.lock if known.lock and not known.is_stale else self.update(name, cancellation)

    def update(self, name: str, cancellation: Cancellation | None = None) -> Lock:
        """Resolve a name again; raises NothingToDo for the default toolchain."""
        spec = find_toolchain(name, self.specs)
        if name == DEFAULT:
            raise NothingToDo(f"{DEFAULT} is what haloctl is installed with, so it is neither resolved nor built")
        lock = resolve(name, spec, self._base, self._context.settings.cache, cancellation)
        earlier = self._locks.get(name)
        self._locks[name] = self._context.store.record_lock(lock, earlier.lock.digest if earlier else None)
        return self._locks[name].lock

    def build(self, lock: Lock, cancellation: Cancellation | None = None) -> Toolchain:
        """Build a lock's environment on this machine and record its compiler's flags; return the toolchain."""
        toolchain = self.environments.build(lock, cancellation)
        self._context.store.record_compiler_flags({lock.digest: toolchain.compiler_flags})
        return toolchain
