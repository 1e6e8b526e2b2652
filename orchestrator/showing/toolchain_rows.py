"""Toolchains as people and programs are shown them."""

from collections.abc import Iterator
from typing import Any

from jobs.toolchains import DEFAULT, Lock
from orchestrator import output
from orchestrator.showing.rows import when
from orchestrator.toolchains.known_toolchains import KnownToolchain
from workers.toolchains.resolving import package_of, pin_of

COLUMNS = ("toolchain", "packages", "stages", "lock", "resolved", "size here", "used here", "nodes")
RIGHT = ("size here",)
LOCK_CHARACTERS = 12  #: of a digest, for people


def as_json(known: KnownToolchain) -> dict[str, Any]:
    """All of it."""
    row, lock, here = known.row, known.lock, known.here
    return {
        "name": known.name,
        "packages": list(row.packages),
        "stages": list(row.stages),
        "engines": list(row.engines),
        "over": row.is_over,
        "without": list(row.without),
        "versions": dict(known.versions),
        "lock": lock.digest if lock else None,
        "python": lock.python if lock else None,
        "lines": list(lock.lines) if lock else [],
        "resolved_at": known.resolved_at.isoformat() if known.resolved_at else None,
        "stale": known.is_stale,
        "here": here
        and {
            "folder": str(here.folder),
            "size_bytes": here.size_bytes,
            "built_at": here.built_at.isoformat(),
            "used_at": here.used_at.isoformat(),
        },
        "nodes": dict(known.nodes),
    }


def line(known: KnownToolchain) -> tuple[str, ...]:
    """One of them in a line."""
    here, lock = known.here, known.lock
    return (
        known.name,
        packages_in_words(known),
        ", ".join(known.row.stages),
        (lock.digest[:LOCK_CHARACTERS] if lock else "") + (" (stale)" if known.is_stale else ""),
        when(known.resolved_at.isoformat()) if known.resolved_at else "",
        output.size(here.size_bytes) if here else "",
        when(here.used_at.isoformat()) if here else "",
        ", ".join(f"{node}: {why}" if why else node for node, why in sorted(known.nodes.items())),
    )


def packages_in_words(known: KnownToolchain) -> str:
    """The packages that it is made of, with the versions that they were resolved to."""
    if known.name == DEFAULT:
        return ", ".join(f"{package} {version}" for package, version in known.versions.items())
    if not known.versions:
        return ", ".join(known.row.packages)
    own = (package_of(requirement) for requirement in known.row.packages)
    return ", ".join(f"{package} {known.versions[package]}" for package in own if package in known.versions)


def facts(known: KnownToolchain) -> Iterator[tuple[str, str]]:
    """All that people want to know of one, as pairs."""
    row, lock, here = known.row, known.lock, known.here
    yield "toolchain", known.name
    if known.name == DEFAULT:
        yield "is", "what haloctl is installed in, on every node; what no other toolchain is asked for runs under it"
    else:
        without = f", without {', '.join(row.without)}" if row.without else ""
        yield "made of", ", ".join(row.packages) + without
        yield "lies over", "what haloctl is installed in" if row.is_over else "nothing: it has all packages of its own"
        yield "runs", f"{', '.join(row.stages)} of the engine {', '.join(row.engines)}"
    if lock:
        resolved = when(known.resolved_at.isoformat()) if known.resolved_at else ""
        yield "lock", f"{lock.digest}, of {resolved}, for Python {lock.python}"
    elif known.name != DEFAULT:
        yield "lock", f"none yet: `haloctl toolchains build {known.name}` resolves it"
    if known.is_stale:
        yield "stale", "what it is made of or lies over has changed: it is resolved anew when it is next needed"
    if here:
        yield "here", f"{here.folder}, {output.size(here.size_bytes)}, used {when(here.used_at.isoformat())}"
    for node, why in sorted(known.nodes.items()):
        yield f"on {node}", why or "built"


def pins(known: KnownToolchain) -> list[str]:
    """Every package that is installed for it, without hashes; of the default one those that count."""
    if known.lock:
        return pins_of(known.lock)
    return [f"{package}=={version}" for package, version in sorted(known.versions.items())]


def pins_of(lock: Lock) -> list[str]:
    """Every package of a lock, without hashes."""
    return [line.partition(" --hash")[0] for line in lock.lines]


def changes(before: KnownToolchain, after: KnownToolchain) -> Iterator[str]:
    """What an update has changed: `ml-dtypes 0.5.0 -> 0.6.0`."""
    old, new = _by_package(before), _by_package(after)
    for package in sorted(old.keys() | new.keys()):
        if old.get(package) != new.get(package):
            yield f"{package} {old.get(package, 'none')} -> {new.get(package, 'none')}"


def _by_package(known: KnownToolchain) -> dict[str, str]:
    return {**dict(map(pin_of, known.lock.lines if known.lock else ())), **known.versions}
