"""What toolchains are made of now, as uv says: for a head that has to know."""

from contextlib import suppress

from jobs.toolchains import Lock, Row, Toolchain, find, source_of
from orchestrator.settings import Settings
from orchestrator.toolchains import site_toolchains
from workers.processes import Cancellation
from workers.toolchains.resolving import PYTHON, resolve


class UvResolver:
    """Implements `locks.Resolver`; a site's own rows are read again when their file has changed."""

    def __init__(self, settings: Settings, base: Toolchain) -> None:
        """`base` is the default toolchain here."""
        self._settings, self._base = settings, base
        self._rows: dict[str, Row] = {}
        self._stamp: object = None

    def source(self, name: str) -> str:
        """Raises UnknownToolchain, and BadSetting or JobFileError for the site's file."""
        return source_of(self._row(name), PYTHON, self._base)

    def resolve(self, name: str, cancellation: Cancellation) -> Lock:
        """Raises ToolchainUnusable too; IndexUnreachable and StorageUnusable where another try may go better."""
        return resolve(name, self._row(name), self._base, self._settings.cache, cancellation)

    def _row(self, name: str) -> Row:
        stamp: object = "read"
        if self._settings.toolchains is not None:
            with suppress(OSError):
                found = self._settings.toolchains.stat()
                stamp = found.st_mtime_ns, found.st_size, found.st_ino
        if stamp != self._stamp:
            self._rows, self._stamp = site_toolchains.rows(self._settings), stamp
        return find(name, self._rows)
