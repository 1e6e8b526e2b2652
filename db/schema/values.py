"""Conversions between the values of `jobs` and JSON columns."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Row

from jobs.state import Failure, FailureKind
from jobs.task import Artifact, Command, Device, Pin, Place, Process, Resources
from jobs.variants import AXES

Plain = dict[str, Any]

#: Raised by a row whose JSON is none, or is not that of the value that it stands for.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def plain(values: Iterable[Artifact | Command | Device | Process]) -> list[Plain]:
    """Return a JSON array of objects; their fields are JSON values."""
    return [dict(vars(value)) for value in values]  # many times as fast as asdict


def plain_places(places: Iterable[Place]) -> list[Plain]:
    """Return a JSON array of nodes with their devices."""
    return [{"node": place.node, "devices": plain(place.devices)} for place in places]


def plain_inputs(inputs: Mapping[str, Iterable[Artifact]]) -> dict[str, list[Plain]]:
    """Return artifacts by the stage that made them."""
    return {stage: plain(artifacts) for stage, artifacts in inputs.items()}


def artifacts_of(rows: Iterable[Plain]) -> tuple[Artifact, ...]:
    """Convert back from `plain`."""
    return tuple(Artifact(**row) for row in rows)


def inputs_of(inputs: Mapping[str, list[Plain]]) -> dict[str, tuple[Artifact, ...]]:
    """Convert back from `plain_inputs`."""
    return {stage: artifacts_of(artifacts) for stage, artifacts in inputs.items()}


def commands_of(rows: Iterable[Plain]) -> tuple[Command, ...]:
    """Convert back from `plain`."""
    return tuple(Command(tuple(row["argv"]), row["env"]) for row in rows)


def places_of(rows: Iterable[Plain] | None) -> tuple[Place, ...]:
    """Convert back from `plain_places`; no places without an attempt."""
    return tuple(Place(row["node"], tuple(Device(**device) for device in row["devices"])) for row in rows or ())


def devices_of(rows: Iterable[Plain] | None) -> tuple[Device, ...]:
    """Return the devices of all places."""
    return tuple(device for place in places_of(rows) for device in place.devices)


def axes_of(row: Row[Any]) -> dict[str, Any]:
    """Return the axes of a variant from a row that has a column for each."""
    return {name: kind(getattr(row, name)) for name, kind in AXES.items()}


def resources_of(row: Plain) -> Resources:
    """Convert resources back. Raises one of MALFORMED."""
    resources = Resources(**row)
    counts = (resources.cpus, resources.memory_bytes, resources.devices, resources.nodes)
    if not all(isinstance(count, int) and count >= 0 for count in counts) or resources.nodes < 1:
        raise ValueError(f"resources that nothing can have: {str(row)[:200]}")
    if not isinstance(resources.device_kind, str):
        raise TypeError(f"a kind of devices that is no name: {str(row)[:200]}")
    return resources


def pin_of(row: Plain | None) -> Pin | None:
    """Convert a pin back; older ones hold a single device number."""
    if not row:
        return None
    index = row.get("device")
    return Pin(row["node"], tuple(row.get("devices", () if index is None else (index,))))


def processes_of(rows: Iterable[Plain]) -> tuple[Process, ...]:
    """Convert back from `plain`."""
    return tuple(Process(**{**row, "argv": tuple(row["argv"])}) for row in rows)


def own_failure_of(row: Plain | None) -> Failure | None:
    """Return why a task failed before it could run."""
    return failure_of(**row) if row else None


def failure_of(kind: str | None, message: str | None, log_tail: str | None = None) -> Failure | None:
    """Return a failure from its columns."""
    return Failure(FailureKind(kind), message or "", log_tail or "") if kind else None
