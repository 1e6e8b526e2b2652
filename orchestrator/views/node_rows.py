"""Nodes, devices and settings as JSON objects and as tables."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from db.reads.machines import DeviceRow, NodeRow
from db.reads.runs import HOST
from jobs.errors import BadSetting, NotFound
from jobs.task import Check
from orchestrator.analysis.speed import DeviceSpeed, place_name, slowness_text, speed_range
from orchestrator.formatting import format_bytes
from orchestrator.tables import TextTable

TARGET = re.compile(r"(?P<node>[^/]+)(?:/(?P<kind>[a-z0-9]+):(?P<index>\d+))?")


def to_json(node: NodeRow, speeds: Mapping[str, DeviceSpeed]) -> dict[str, Any]:
    """Return a node with its devices; `speeds` are by place."""
    speeds = device_speeds(node, speeds)
    devices = [
        {**asdict(device), "speed": asdict(speed) if (speed := speeds.get(_device_name(device))) else None}
        for device in node.devices
    ]
    return {**asdict(node), "devices": devices, "state": node_state(node)}


def build_table(nodes: Iterable[NodeRow], speeds: Mapping[str, DeviceSpeed]) -> TextTable:
    """Return a table of nodes; `speeds` are by place."""
    columns = ("node", "state", "host", "cpus", "memory", "devices", "speed", "settings", "why")
    rows = [to_table_row(node, speeds) for node in nodes]
    return TextTable(columns, rows, right=("cpus", "memory"))


def to_table_row(node: NodeRow, speeds: Mapping[str, DeviceSpeed]) -> tuple[str, ...]:
    """Return a node's row; `speeds` are by place."""
    speeds = device_speeds(node, speeds)
    slow = (slowness_text(name, speed) for name, speed in speeds.items() if speed.is_slow)
    wrong_count = sum(not check.is_ok for check in node.checks)
    return (
        *(node.id, node_state(node), node.host, str(node.cpus), format_bytes(node.memory_bytes)),
        *(format_devices(node.devices), speed_range(speeds)),
        f"{wrong_count} to change" if wrong_count else "ok" if node.checks else "",
        "; ".join((*unavailable_reasons(node), *slow)),
    )


def device_speeds(node: NodeRow, speeds: Mapping[str, DeviceSpeed]) -> dict[str, DeviceSpeed]:
    """Return the speeds of a node's devices by name; all logical devices of a host share its speed."""
    places = {_device_name(device): place_name(node.id, device, HOST) for device in node.devices}
    return {name: speeds[place] for name, place in places.items() if place in speeds}


def _device_name(device: DeviceRow) -> str:
    return f"{device.kind}:{device.index}"


def node_state(node: NodeRow) -> str:
    """Return `up`, `down`, `refusing`, or how the node was cordoned."""
    if not node.is_up:
        return "down"
    return node.cordon or ("refusing" if node.not_ready_reason else "up")


def format_devices(devices: Sequence[DeviceRow]) -> str:
    """Return the number of devices of each kind, and how much of their memory is in use."""
    counts = Counter(device.kind for device in devices)
    return ", ".join(f"{count} x {kind}{_memory_in_use(kind, devices)}" for kind, count in counts.items())


def _memory_in_use(kind: str, devices: Iterable[DeviceRow]) -> str:
    of_kind = [device for device in devices if device.kind == kind]
    sizes = [
        (device.memory_used_bytes, device.memory_bytes)
        for device in of_kind
        if device.memory_bytes and device.memory_used_bytes is not None
    ]
    if not sizes:
        return ""
    used_bytes, total_bytes = (sum(column) for column in zip(*sizes, strict=True))
    return f" ({format_bytes(used_bytes)} of {format_bytes(total_bytes)} in use)"


def unavailable_reasons(node: NodeRow) -> Iterator[str]:
    """Yield why a node, a toolchain or a device of it is not used."""
    if node.cordon_reason:
        yield node.cordon_reason
    if node.is_up and node.not_ready_reason:
        yield node.not_ready_reason
    for reason in node.toolchains.values():
        if reason:
            yield " ".join(reason.split())
    for device in node.devices:
        if device.quarantine_reason:
            yield f"{_device_name(device)} is quarantined: {device.quarantine_reason}"


def checks_to_json(name: str, checks: Iterable[Check]) -> dict[str, Any]:
    """Return a node's checks."""
    return {"node": name, "checks": [asdict(check) for check in checks]}


def build_check_table(checks_by_node: Iterable[tuple[str, Iterable[Check]]]) -> TextTable:
    """Return a table of the checks of nodes."""
    rows = [
        (name, check.name, "PASS" if check.is_ok else "FAIL", check.found, check.wanted, check.advice)
        for name, checks in checks_by_node
        for check in checks
    ]
    return TextTable(("node", "setting", "verdict", "found", "wanted", "remedy"), rows)


def parse_target(text: str) -> tuple[str, str, int]:
    """Parse NODE or NODE/KIND:INDEX into its parts, with an empty kind for a whole node; raises BadSetting."""
    match = TARGET.fullmatch(text)
    if not match:
        raise BadSetting("NODE[/KIND:INDEX]", f"{text!r} is neither a node nor a device such as n1/mi300x:3")
    return match["node"], match["kind"] or "", int(match["index"] or 0)


def quarantine_reason(node: NodeRow, kind: str, index: int) -> str | None:
    """Return why a node or one of its devices is quarantined; None if it is not. Raises NotFound for a device."""
    if not kind:
        return node.cordon_reason or "" if node.cordon == "quarantined" else None
    for device in node.devices:
        if (device.kind, device.index) == (kind, index):
            return device.quarantine_reason
    raise NotFound("device", f"{node.id}/{kind}:{index}")
