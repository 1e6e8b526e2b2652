"""The resolution of toolchains with uv, for the head."""

from contextlib import suppress

from jobs.toolchain_table import find_toolchain
from jobs.toolchains import Lock, Toolchain, ToolchainSpec, source_of
from orchestrator.settings import Settings
from orchestrator.toolchains import site_toolchains
from workers.processes.cancellation import Cancellation
from workers.toolchains.resolving import PYTHON, resolve


class UvResolver:
    """Implements the leader's `Resolver`; the site's file is read again when it has changed."""

    def __init__(self, settings: Settings, base: Toolchain) -> None:
        """`base` is this machine's default toolchain."""
        self._settings, self._base = settings, base
        self._specs: dict[str, ToolchainSpec] = {}
        self._stamp: object = None

    def source(self, name: str) -> str:
        """Return the digest of what a name is resolved from; raises UnknownToolchain, BadSetting or JobFileError."""
        return source_of(self._spec(name), PYTHON, self._base)

    def resolve(self, name: str, cancellation: Cancellation) -> Lock:
        """Resolve a name; also raises ToolchainUnusable, or IndexUnreachable and StorageUnusable, which may pass."""
        return resolve(name, self._spec(name), self._base, self._settings.cache, cancellation)

    def _spec(self, name: str) -> ToolchainSpec:
        stamp: object = "read"
        if self._settings.toolchains is not None:
            with suppress(OSError):
                status = self._settings.toolchains.stat()
                stamp = status.st_mtime_ns, status.st_size, status.st_ino
        if stamp != self._stamp:
            self._specs, self._stamp = site_toolchains.read_toolchains(self._settings), stamp
        return find_toolchain(name, self._specs)
