"""Nodes, devices and settings as rows that people and programs read."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from db.machines import DeviceRow, NodeRow
from db.runs import HOST
from jobs.errors import BadSetting, NotFound
from jobs.task import Check
from orchestrator import output
from orchestrator.deciding.speed import Speed, place_of, ranged
from orchestrator.deciding.speed import in_words as speed_in_words

COLUMNS = ("node", "state", "host", "cpus", "memory", "devices", "speed", "settings", "why")
RIGHT = ("cpus", "memory")
CHECK_COLUMNS = ("node", "setting", "verdict", "found", "wanted", "what to do")
TARGET = re.compile(r"(?P<node>[^/]+)(?:/(?P<kind>[a-z0-9]+):(?P<index>\d+))?")


def as_json(node: NodeRow, speeds: Mapping[str, Speed]) -> dict[str, Any]:
    """All that is known of a node; `speeds` are by place."""
    found = speeds_of(node, speeds)
    devices = [
        {**asdict(device), "speed": asdict(speed) if (speed := found.get(_name(device))) else None}
        for device in node.devices
    ]
    return {**asdict(node), "devices": devices, "state": state(node)}


def line(node: NodeRow, speeds: Mapping[str, Speed]) -> tuple[str, ...]:
    """A node in one line."""
    found = speeds_of(node, speeds)
    slow = (speed_in_words(name, speed) for name, speed in found.items() if speed.is_slow)
    bad = sum(not check.is_ok for check in node.checks)
    return (
        node.id,
        state(node),
        node.host,
        str(node.cpus),
        output.size(node.memory_bytes),
        devices_in_words(node.devices),
        ranged(found),
        f"{bad} to change" if bad else "ok" if node.checks else "",
        "; ".join((*reasons(node), *slow)),
    )


def speeds_of(node: NodeRow, speeds: Mapping[str, Speed]) -> dict[str, Speed]:
    """By the name of the device; all logical devices of a host are as fast as it."""
    places = {_name(device): place_of(node.id, device, HOST) for device in node.devices}
    return {name: speeds[place] for name, place in places.items() if place in speeds}


def _name(device: DeviceRow) -> str:
    return f"{device.kind}:{device.index}"


def state(node: NodeRow) -> str:
    """Whether anything is started on it: up, down, refusing, or how it was closed."""
    if not node.is_up:
        return "down"
    return node.closed or ("refusing" if node.refuses_why else "up")


def devices_in_words(devices: Iterable[DeviceRow]) -> str:
    """How many there are of each kind, and how much of their memory is in use."""
    devices = list(devices)
    counts = Counter(device.kind for device in devices)
    return ", ".join(f"{count} x {kind}{_memory(kind, devices)}" for kind, count in counts.items())


def _memory(kind: str, devices: Iterable[DeviceRow]) -> str:
    known = [one for one in devices if one.kind == kind and one.memory_bytes and one.memory_used_bytes is not None]
    if not known:
        return ""
    used = sum(one.memory_used_bytes or 0 for one in known)
    return f" ({output.size(used)} of {output.size(sum(one.memory_bytes for one in known))} in use)"


def reasons(node: NodeRow) -> Iterator[str]:
    """Why it, or some of its devices, are not used."""
    if node.closed_why:
        yield node.closed_why
    if node.is_up and node.refuses_why:
        yield node.refuses_why
    for why in node.toolchains.values():
        if why:
            yield " ".join(why.split())
    for device in node.devices:
        if device.quarantined_why:
            yield f"{device.kind}:{device.index} is quarantined: {device.quarantined_why}"


def checks_as_json(name: str, checks: Iterable[Check]) -> dict[str, Any]:
    """A node's settings."""
    return {"node": name, "checks": [asdict(check) for check in checks]}


def check_lines(name: str, checks: Iterable[Check]) -> Iterator[tuple[str, ...]]:
    """A node's settings, a line each."""
    for check in checks:
        yield name, check.name, "PASS" if check.is_ok else "FAIL", check.found, check.wanted, check.advice


def parsed_target(text: str) -> tuple[str, str, int]:
    """Node, kind and index of NODE or NODE/KIND:INDEX, the kind empty for a whole node; raises BadSetting."""
    found = TARGET.fullmatch(text)
    if not found:
        raise BadSetting("NODE[/KIND:INDEX]", f"{text!r} is neither a node nor a device such as n1/mi300x:3")
    return found["node"], found["kind"] or "", int(found["index"] or 0)


def quarantined_why(node: NodeRow, kind: str, index: int) -> str | None:
    """Why a node, or a device of it, is quarantined; None where it is not. Raises NotFound for an unknown device."""
    if not kind:
        return node.closed_why or "" if node.closed == "quarantined" else None
    for device in node.devices:
        if (device.kind, device.index) == (kind, index):
            return device.quarantined_why
    raise NotFound("device", f"{node.id}/{kind}:{index}")
