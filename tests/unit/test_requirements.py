"""What is installed is pinned with hashes: infra/requirements has all that pyproject.toml asks for."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
REMEDY = "run make lock"


def pinned(file: Path) -> dict[str, tuple[str, int]]:
    """The version of each package of a requirements file, with the number of its hashes."""
    entries = file.read_text().replace("\\\n", " ").splitlines()
    pins = ((Requirement(entry.partition("--hash")[0].strip()), entry) for entry in entries if entry.strip())
    return {
        canonicalize_name(pin.name): (str(pin.specifier).removeprefix("=="), len(HASH.findall(entry)))
        for pin, entry in pins
    }


def closure(requirements: Iterable[str], extras: frozenset[str] = frozenset()) -> set[str]:
    """The packages that some requirements need here, and what those need as far as they are installed."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [*_applying(requirements, extras)]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            with suppress(metadata.PackageNotFoundError):
                waiting += _applying(metadata.requires(each[0]) or (), each[1])
    return {name for name, _ in found}


def _applying(requirements: Iterable[str], extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for requirement in map(Requirement, requirements):
        environments = [{"extra": extra} for extra in (*extras, "")]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


BASE, DEV, TORCH = (pinned(ROOT / "infra" / "requirements" / f"{name}.txt") for name in ("base", "dev", "torch"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("locked", "extras"), [(BASE, ["postgres", "serve"]), (DEV, ["postgres", "dev"])], ids=["base", "dev"]
)
def test_all_that_is_needed_is_pinned(locked: dict[str, tuple[str, int]], extras: list[str]) -> None:
    needed = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    needed += [requirement for extra in extras for requirement in EXTRAS[extra]]
    assert closure(needed) - locked.keys() - TORCH.keys() <= {"haloctl"}, REMEDY  # its extras may need each other


@pytest.mark.parametrize("locked", [BASE, DEV, TORCH], ids=["base", "dev", "torch"])
def test_each_pin_has_hashes_and_the_version_of_the_constraints(locked: dict[str, tuple[str, int]]) -> None:
    constraints = pinned(ROOT / "constraints.txt")
    assert [name for name, (_, hashes) in locked.items() if not hashes] == []
    versions = {name: version for name, (version, _) in locked.items()}
    assert {name: versions[name] for name in versions.keys() & constraints.keys()} == {
        name: constraints[name][0] for name in versions.keys() & constraints.keys()
    }, REMEDY


def test_torch_is_pinned_apart_because_sites_have_their_own() -> None:
    assert "torch" in TORCH
    assert TORCH.keys() & (BASE.keys() | DEV.keys()) == set()
