"""What a node must have in common with the head: the artifact store, and the versions that stages run with."""

from pathlib import Path

from jobs.toolchains import Toolchain
from workers.agent import store_mark
from workers.artifacts import Location
from workers.toolchain_probe import probe_toolchain


class VersionSkew:
    """Compares nodes with this head, whose own toolchain and store mark are determined when first needed."""

    def __init__(self, data: Path, artifacts: Location, toolchain: Toolchain | None) -> None:
        self.artifacts = artifacts
        self._cache, self._toolchain = data / "cache", toolchain
        self._mark: str | None = None

    @property
    def mark(self) -> str:
        """The mark of the artifact store."""
        if self._mark is None:
            self._mark = store_mark.make(self.artifacts)
        return self._mark

    def explain(self, toolchain: Toolchain) -> str | None:
        """Explain how a node's toolchain differs from the head's; None when it does not."""
        if self._toolchain is None:
            self._toolchain = probe_toolchain(self._cache)
        return explain_skew(self._toolchain, toolchain)


def explain_skew(expected: Toolchain, actual: Toolchain) -> str | None:
    """Explain how the packages or haloctl's own programs differ; None when they don't."""
    differences = [
        f"{package} is {actual.versions.get(package, 'missing')}, not {expected.versions.get(package, 'missing')}"
        for package in sorted(expected.versions.keys() | actual.versions.keys())
        if actual.versions.get(package) != expected.versions.get(package)
    ]
    if expected.programs != actual.programs:
        differences.append("haloctl's stage programs are another version's")
    return f"install what the head has: {', '.join(differences)}" if differences else None
