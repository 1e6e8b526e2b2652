"""Resolves a toolchain's requirements to a lock, by uv."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs.toolchain_table import result_packages
from jobs.toolchains import Lock, Toolchain, ToolchainSpec, source_of
from workers.processes.cancellation import Cancellation
from workers.toolchains import uv
from workers.toolchains.overlay import site_folders

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CANT = "can't be resolved"
NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?")


def resolve(
    name: str, row: ToolchainSpec, base: Toolchain, cache: Path, cancellation: Cancellation | None = None
) -> Lock:
    """Resolve a toolchain's packages to versions for this interpreter; `base` is the default toolchain here.

    Raises ToolchainUnusable where they conflict, with each other or with what they lie over; IndexUnreachable and
    StorageUnusable where a later try may succeed.
    """
    below = dict(installed_packages()) if row.is_over else {}
    requested = {package_name(requirement) for requirement in row.packages}
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="resolve-", dir=cache) as scratch:
        folder = Path(scratch)
        _write(folder / "packages", row.packages)
        kept = {package: version for package, version in below.items() if package not in requested}
        _write(folder / "constraints", (f"{package}=={version}" for package, version in kept.items() if version))
        # no index has what was built here, nor a release's local version: those are used as they are
        installed_only = [package for package, version in kept.items() if not version or "+" in version]
        _write(folder / "excludes", (*installed_only, *row.without))
        uv.run(name, CANT, [_command(may_build=row.may_build)], folder, cache / "uv", cancellation)
        text = (folder / "lock").read_text()
    lines = tuple(line for line in read_lock_lines(text) if not _is_below(line, kept))
    versions = dict(map(parse_pin, lines))
    relevant = {
        package: version for package, version in versions.items() if package in {*result_packages(), *requested}
    }
    under = dict(base.versions) if row.is_over else {}
    return Lock(name, lines, {**under, **relevant}, PYTHON, row.is_over, source_of(row, PYTHON, base))


def read_lock_lines(text: str) -> Iterator[str]:
    """Yield one line for each package of a requirements file, with its hashes."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield " ".join(line.split())


def parse_pin(line: str) -> tuple[str, str]:
    """Split a lock's line into (package, version); the version of what is not from an index is its URL."""
    pin = line.partition(" --hash")[0]
    package, _, version = pin.partition("==") if "==" in pin else pin.partition(" @ ")
    return normalize_name(package), version.strip()


def package_name(requirement: str) -> str:
    """Return the name of a requirement's package, as indexes spell it."""
    match = NAME.match(requirement.strip())
    return normalize_name(match[0]) if match else requirement


def normalize_name(package: str) -> str:
    """Return a package's name as indexes spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def installed_packages() -> Iterator[tuple[str, str]]:
    """Yield the installed packages with their versions; the version of one that is not from an index is empty.

    What a package brings for itself is left out: Ray puts a folder of its own on the path, which others do not see.
    """
    folders = [Path(folder).resolve() for folder in site_folders()]
    for distribution in metadata.distributions():
        if any(folder in Path(str(distribution.locate_file(""))).resolve().parents for folder in folders):
            continue
        is_local = distribution.read_text("direct_url.json")
        yield normalize_name(distribution.name), "" if is_local else distribution.version


def _command(*, may_build: bool) -> list[str]:
    return [
        *(uv.path(), "pip", "compile", "--quiet", "packages", "--output-file", "lock"),
        *("--constraints", "constraints", "--excludes", "excludes"),
        *("--python", sys.executable, "--generate-hashes", "--no-header", "--no-annotate", "--no-sources"),
        *(() if may_build else ("--only-binary", ":all:")),
    ]


def _is_below(line: str, kept: dict[str, str]) -> bool:
    package, version = parse_pin(line)
    return kept.get(package) == version


def _write(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines))
