"""What a node must have in common with the head: the artifact store, and what stages run under."""

from pathlib import Path

from jobs.toolchains import Toolchain
from workers import store_mark
from workers.artifacts import Location
from workers.environment import probe_toolchain


class Sameness:
    """What the head has; found out when it is first asked for."""

    def __init__(self, data: Path, artifacts: Location, toolchain: Toolchain | None) -> None:
        self.artifacts = artifacts
        self._cache, self._toolchain = data / "cache", toolchain
        self._mark: str | None = None

    @property
    def mark(self) -> str:
        """Of the artifact store."""
        if self._mark is None:
            self._mark = store_mark.make(self.artifacts)
        return self._mark

    def difference(self, found: Toolchain) -> str | None:
        """In what a node's toolchain is not the head's, if in anything."""
        if self._toolchain is None:
            self._toolchain = probe_toolchain(self._cache)
        return difference(self._toolchain, found)


def difference(wanted: Toolchain, found: Toolchain) -> str | None:
    """In what a toolchain is not the wanted one: its packages, or haloctl's own programs."""
    told = [
        f"{package} is {found.versions.get(package, 'missing')}, not {wanted.versions.get(package, 'missing')}"
        for package in sorted(wanted.versions.keys() | found.versions.keys())
        if found.versions.get(package) != wanted.versions.get(package)
    ]
    if wanted.programs != found.programs:
        told.append("haloctl's stage programs are another version's")
    return f"install there what the head has: {', '.join(told)}" if told else None
