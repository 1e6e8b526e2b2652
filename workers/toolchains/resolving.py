"""From a toolchain's row to a lock: uv says which versions go together."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs.toolchains import PACKAGES, Lock, Row, Toolchain, source_of
from workers.processes import Cancellation
from workers.toolchains import uv

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CANT = "can't be resolved"
NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?")


def resolve(name: str, row: Row, base: Toolchain, cache: Path, cancellation: Cancellation | None = None) -> Lock:
    """What a row's packages are now, for this interpreter; `base` is the default toolchain here.

    Raises ToolchainUnusable where they do not go together, with each other or with what they lie over;
    IndexUnreachable, StorageUnusable where it may be tried again.
    """
    below = dict(installed()) if row.is_over else {}
    own = {package_of(requirement) for requirement in row.packages}
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="resolve-", dir=cache) as scratch:
        folder = Path(scratch)
        _write(folder / "packages", row.packages)
        kept = {package: version for package, version in below.items() if package not in own}
        _write(folder / "constraints", (f"{package}=={version}" for package, version in kept.items() if version))
        # no index has what was built here, nor a release's local version: what is there is taken as it is
        taken = [package for package, version in kept.items() if not version or "+" in version]
        _write(folder / "excludes", (*taken, *row.without))
        uv.run(name, CANT, [_command()], folder, cache / "uv", cancellation)
        found = (folder / "lock").read_text()
    lines = tuple(line for line in lines_of(found) if not _is_below(line, kept))
    versions = dict(map(pin_of, lines))
    matter = {package: version for package, version in versions.items() if package in {*PACKAGES, *own}}
    under = dict(base.versions) if row.is_over else {}
    return Lock(name, lines, {**under, **matter}, PYTHON, row.is_over, source_of(row, PYTHON, base))


def lines_of(text: str) -> Iterator[str]:
    """One line for each package of a requirements file, its hashes behind it."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield " ".join(line.split())


def pin_of(line: str) -> tuple[str, str]:
    """A lock's line as (package, version); what comes from elsewhere than an index has where as its version."""
    pin = line.partition(" --hash")[0]
    package, _, version = pin.partition("==") if "==" in pin else pin.partition(" @ ")
    return normal(package), version.strip()


def package_of(requirement: str) -> str:
    """The package that a requirement is for, as indexes spell it."""
    found = NAME.match(requirement.strip())
    return normal(found[0]) if found else requirement


def normal(package: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def installed() -> Iterator[tuple[str, str]]:
    """What is installed here, with its version; without one where it is not from an index but built here."""
    for found in metadata.distributions():
        yield normal(found.name), "" if found.read_text("direct_url.json") else found.version


def _command() -> list[str]:
    return [
        *(uv.path(), "pip", "compile", "--quiet", "packages", "--output-file", "lock"),
        *("--constraints", "constraints", "--excludes", "excludes"),
        *("--python", sys.executable, "--generate-hashes", "--no-header", "--no-annotate", "--no-sources"),
    ]


def _is_below(line: str, kept: dict[str, str]) -> bool:
    package, version = pin_of(line)
    return kept.get(package) == version


def _write(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines))
