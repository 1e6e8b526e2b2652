"""The values of `jobs` as JSON columns keep them, and back."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Row

from jobs.state import Failure, FailureKind
from jobs.task import Artifact, Command, Device, Pin, Place, Process
from jobs.variants import AXES

Plain = dict[str, Any]


def plain(values: Iterable[Artifact | Command | Device | Process]) -> list[Plain]:
    """A JSON array of objects; their fields are JSON values already."""
    return [dict(vars(value)) for value in values]  # many times as fast as asdict


def plain_places(places: Iterable[Place]) -> list[Plain]:
    """A JSON array of nodes with their devices."""
    return [{"node": place.node, "devices": plain(place.devices)} for place in places]


def plain_inputs(inputs: Mapping[str, Iterable[Artifact]]) -> dict[str, list[Plain]]:
    """Artifacts by the stage that made them."""
    return {stage: plain(artifacts) for stage, artifacts in inputs.items()}


def artifacts_of(found: Iterable[Plain]) -> tuple[Artifact, ...]:
    """Back from `plain`."""
    return tuple(Artifact(**one) for one in found)


def inputs_of(found: Mapping[str, list[Plain]]) -> dict[str, tuple[Artifact, ...]]:
    """Back from `plain_inputs`."""
    return {stage: artifacts_of(ones) for stage, ones in found.items()}


def commands_of(found: Iterable[Plain]) -> tuple[Command, ...]:
    """Back from `plain`."""
    return tuple(Command(tuple(one["argv"]), one["env"]) for one in found)


def places_of(found: Iterable[Plain] | None) -> tuple[Place, ...]:
    """Back from `plain_places`; none where there is no attempt."""
    return tuple(Place(one["node"], tuple(Device(**device) for device in one["devices"])) for one in found or ())


def devices_of(found: Iterable[Plain] | None) -> tuple[Device, ...]:
    """The devices of all places."""
    return tuple(device for place in places_of(found) for device in place.devices)


def axes_of(row: Row[Any]) -> dict[str, Any]:
    """The axes of a variant, from a row that has a column for each."""
    return {name: kind(getattr(row, name)) for name, kind in AXES.items()}


def pin_of(found: Plain | None) -> Pin | None:
    """Back from JSON, in which one device once was a number."""
    if not found:
        return None
    one = found.get("device")
    return Pin(found["node"], tuple(found.get("devices", () if one is None else (one,))))


def processes_of(found: Iterable[Plain]) -> tuple[Process, ...]:
    """Back from `plain`."""
    return tuple(Process(**{**one, "argv": tuple(one["argv"])}) for one in found)


def own_failure_of(found: Plain | None) -> Failure | None:
    """Why a task failed before it could run."""
    return failure_of(**found) if found else None


def failure_of(kind: str | None, message: str | None, log_tail: str | None = None) -> Failure | None:
    """A failure from the columns that it is kept in."""
    return Failure(FailureKind(kind), message or "", log_tail or "") if kind else None
