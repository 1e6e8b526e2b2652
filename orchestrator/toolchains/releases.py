"""The toolchains of a family that lie between two of them: one for each release that the registry has."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from packaging.version import Version

from jobs.errors import BadSetting
from jobs.toolchains import FAMILIES, Row, find
from workers.toolchains.resolving import package_of

LISTED = re.compile(r"^Available versions: (.*)$", re.MULTILINE)
TIMEOUT_S = 120
REMEDY = "name them in their order with --toolchains a,b,c"


def candidates(good: str, bad: str, rows: Mapping[str, Row]) -> tuple[str, ...]:
    """From good to bad, whichever is newer. Raises BadSetting where no registry knows what lies between."""
    ends = [_release(name, rows) for name in (good, bad)]
    families = {name.removesuffix(release) for name, release in zip((good, bad), ends, strict=True)}
    if "" in ends or len(families) > 1:
        raise BadSetting("--good, --bad", f"{good} and {bad} are not of one family, whose releases are known: {REMEDY}")
    package = package_of(find(bad, rows).packages[0])
    return between(good, bad, ends[0], ends[1], available(package))


def _release(name: str, rows: Mapping[str, Row]) -> str:
    """What a name of a family says after the family's own name; empty for any other."""
    found = (family.name.fullmatch(name) for family in FAMILIES.values()) if name not in rows else ()
    return next((match[1] for match in found if match), "")


def between(good: str, bad: str, first: str, last: str, versions: Sequence[str]) -> tuple[str, ...]:
    """The names from good to bad, of the releases `first` to `last`: `3.9` is all of 3.9. Pure.

    Each lies in a release by itself: of a minor release with several, all are named in full.
    """
    prefix = good.removesuffix(first)
    older, newer = sorted((first, last), key=Version)
    known = sorted({Version(text) for text in versions if not Version(text).is_prerelease})
    inner = [
        one
        for one in known
        if Version(older) < one < Version(newer) and not _is_of(one, older) and not _is_of(one, newer)
    ]
    several = Counter((one.major, one.minor) for one in known)
    names = [
        f"{prefix}{one}" if several[one.major, one.minor] > 1 else f"{prefix}{one.major}.{one.minor}" for one in inner
    ]
    return (good, *(names if first == older else reversed(names)), bad)


def _is_of(version: Version, release: str) -> bool:
    """Whether a version is what a release stands for: `3.9` for the whole of 3.9."""
    parts = tuple(int(part) for part in release.split(".")[:2])
    return (version.major, version.minor) == parts if release.count(".") == 1 else str(version) == release


def available(package: str) -> list[str]:
    """All releases of a package that pip finds; raises BadSetting with pip's own words where it finds none."""
    argv = [sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BadSetting("--good, --bad", f"pip took too long to list the releases of {package}; {REMEDY}") from error
    found = LISTED.search(done.stdout)
    if found is None:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise BadSetting("--good, --bad", f"the releases of {package} can't be listed, pip says: {said}; {REMEDY}")
    return [text.strip() for text in found[1].split(",")]
