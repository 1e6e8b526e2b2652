"""Toolchains as JSON objects, tables and text."""

from collections.abc import Iterable, Iterator
from typing import Any

from jobs.toolchain_table import stages_of_toolchain
from jobs.toolchains import DEFAULT, Lock
from orchestrator.formatting import format_bytes
from orchestrator.tables import TextTable
from orchestrator.times import format_time
from orchestrator.toolchains.known_toolchains import KnownToolchain
from workers.toolchains.resolving import package_name, parse_pin

LOCK_DIGITS = 12  #: of a lock's digest in the table


def to_json(known: KnownToolchain) -> dict[str, Any]:
    """Return a toolchain with its lock and its build on this machine."""
    spec, lock, built = known.spec, known.lock, known.environment
    return {
        "name": known.name,
        "packages": list(spec.packages),
        "stages": list(stages_of_toolchain(spec)),
        "engines": list(spec.engines),
        "over": spec.is_over,
        "without": list(spec.without),
        "versions": dict(known.versions),
        "lock": lock.digest if lock else None,
        "python": lock.python if lock else None,
        "lines": list(lock.lines) if lock else [],
        "resolved_at": known.resolved_at.isoformat() if known.resolved_at else None,
        "stale": known.is_stale,
        "here": built
        and {
            "folder": str(built.folder),
            "size_bytes": built.size_bytes,
            "built_at": built.built_at.isoformat(),
            "used_at": built.used_at.isoformat(),
        },
        "nodes": dict(known.nodes),
    }


def build_table(toolchains: Iterable[KnownToolchain]) -> TextTable:
    """Return a table of toolchains."""
    columns = ("toolchain", "packages", "stages", "lock", "resolved", "size here", "used here", "nodes")
    return TextTable(columns, [_table_row(known) for known in toolchains], right=("size here",))


def _table_row(known: KnownToolchain) -> tuple[str, ...]:
    built, lock = known.environment, known.lock
    return (
        *(known.name, format_packages(known), ", ".join(stages_of_toolchain(known.spec))),
        (lock.digest[:LOCK_DIGITS] if lock else "") + (" (stale)" if known.is_stale else ""),
        format_time(known.resolved_at.isoformat()) if known.resolved_at else "",
        format_bytes(built.size_bytes) if built else "",
        format_time(built.used_at.isoformat()) if built else "",
        ", ".join(f"{node}: {problem}" if problem else node for node, problem in sorted(known.nodes.items())),
    )


def format_packages(known: KnownToolchain) -> str:
    """Return a toolchain's packages with the versions that they were resolved to."""
    if known.name == DEFAULT:
        return ", ".join(f"{package} {version}" for package, version in known.versions.items())
    if not known.versions:
        return ", ".join(known.spec.packages)
    packages = (package_name(requirement) for requirement in known.spec.packages)
    return ", ".join(f"{package} {known.versions[package]}" for package in packages if package in known.versions)


def describe(known: KnownToolchain) -> Iterator[tuple[str, str]]:
    """Yield the labels and texts that describe a toolchain."""
    spec, lock, built = known.spec, known.lock, known.environment
    yield "toolchain", known.name
    if known.name == DEFAULT:
        yield "is", "the environment of haloctl itself, on every node; tasks without another toolchain run in it"
    else:
        without = f", without {', '.join(spec.without)}" if spec.without else ""
        yield "packages", ", ".join(spec.packages) + without
        yield "base", "the environment of haloctl itself" if spec.is_over else "none: it contains all its packages"
        yield "runs", f"{', '.join(stages_of_toolchain(spec))} of the engine {', '.join(spec.engines)}"
    if lock:
        resolved = format_time(known.resolved_at.isoformat()) if known.resolved_at else ""
        yield "lock", f"{lock.digest}, of {resolved}, for Python {lock.python}"
    elif known.name != DEFAULT:
        yield "lock", f"none: run `haloctl toolchains build {known.name}`"
    if known.is_stale:
        yield "stale", "its packages or its base have changed: it is resolved again at its next use"
    if built:
        used = format_time(built.used_at.isoformat())
        yield "here", f"{built.folder}, {format_bytes(built.size_bytes)}, used {used}"
    for node, problem in sorted(known.nodes.items()):
        yield f"on {node}", problem or "built"


def list_pins(known: KnownToolchain) -> list[str]:
    """Return the pins of all packages, without hashes; of the default toolchain those that affect results."""
    if known.lock:
        return lock_pins(known.lock)
    return [f"{package}=={version}" for package, version in sorted(known.versions.items())]


def lock_pins(lock: Lock) -> list[str]:
    """Return the pins of a lock, without hashes."""
    return [line.partition(" --hash")[0] for line in lock.lines]


def changed_packages(before: KnownToolchain, after: KnownToolchain) -> Iterator[str]:
    """Yield what an update has changed: `ml-dtypes 0.5.0 -> 0.6.0`."""
    old, new = _versions_by_package(before), _versions_by_package(after)
    for package in sorted(old.keys() | new.keys()):
        if old.get(package) != new.get(package):
            yield f"{package} {old.get(package, 'none')} -> {new.get(package, 'none')}"


def _versions_by_package(known: KnownToolchain) -> dict[str, str]:
    return {**dict(map(parse_pin, known.lock.lines if known.lock else ())), **known.versions}
