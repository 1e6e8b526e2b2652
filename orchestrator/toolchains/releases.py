"""The toolchains between two of a family: one for each release in the package index."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from packaging.version import Version

from jobs.errors import BadSetting
from jobs.toolchain_table import families, find_toolchain
from jobs.toolchains import ToolchainSpec
from workers.toolchains.resolving import package_name

LISTED = re.compile(r"^Available versions: (.*)$", re.MULTILINE)
TIMEOUT_S = 120
REMEDY = "name them in their order with --toolchains a,b,c"


def candidates(good: str, bad: str, specs: Mapping[str, ToolchainSpec]) -> tuple[str, ...]:
    """Return the names from good to bad, whichever is newer; raises BadSetting if they are not of one family."""
    ends = [_release(name, specs) for name in (good, bad)]
    prefixes = {name.removesuffix(release) for name, release in zip((good, bad), ends, strict=True)}
    if "" in ends or len(prefixes) > 1:
        raise BadSetting("--good, --bad", f"{good} and {bad} are not releases of one family: {REMEDY}")
    package = package_name(find_toolchain(bad, specs).packages[0])
    return between(good, bad, ends[0], ends[1], available(package))


def _release(name: str, specs: Mapping[str, ToolchainSpec]) -> str:
    """Return the release in a family's name; empty for any other name."""
    matches = (family.name.fullmatch(name) for family in families().values()) if name not in specs else ()
    return next((match[1] for match in matches if match), "")


def between(good: str, bad: str, first: str, last: str, versions: Sequence[str]) -> tuple[str, ...]:
    """Return the names from good to bad for the releases `first` to `last`; `3.9` stands for all of 3.9.

    A minor release with several versions in the index is named in full.
    """
    prefix = good.removesuffix(first)
    older, newer = sorted((first, last), key=Version)
    known = sorted({Version(text) for text in versions if not Version(text).is_prerelease})
    inner = [
        version
        for version in known
        if Version(older) < version < Version(newer) and not _is_of(version, older) and not _is_of(version, newer)
    ]
    versions_of_minor = Counter((version.major, version.minor) for version in known)
    names = [
        f"{prefix}{version}"
        if versions_of_minor[version.major, version.minor] > 1
        else f"{prefix}{version.major}.{version.minor}"
        for version in inner
    ]
    return (good, *(names if first == older else reversed(names)), bad)


def _is_of(version: Version, release: str) -> bool:
    """Return whether a version belongs to a release, where `3.9` is all of 3.9."""
    parts = tuple(int(part) for part in release.split(".")[:2])
    return (version.major, version.minor) == parts if release.count(".") == 1 else str(version) == release


def available(package: str) -> list[str]:
    """Return all releases of a package that pip finds; raises BadSetting with pip's message if it finds none."""
    argv = [sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check"]
    try:
        process = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BadSetting("--good, --bad", f"pip took too long to list the releases of {package}; {REMEDY}") from error
    match = LISTED.search(process.stdout)
    if match is None:
        reason = (process.stderr.strip().splitlines() or ["no reason"])[-1]
        raise BadSetting("--good, --bad", f"the releases of {package} can't be listed, pip says: {reason}; {REMEDY}")
    return [text.strip() for text in match[1].split(",")]
