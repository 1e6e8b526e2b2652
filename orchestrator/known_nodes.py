"""The nodes that commands know: those that heads have recorded, or this machine where no head has ever led."""

from typing import TYPE_CHECKING

from jobs.task import Device, Node
from orchestrator.context import Context, open_context

if TYPE_CHECKING:
    from collections.abc import Iterable

    from db.reads.machines import DeviceRow, NodeRow


def list_nodes(context: Context) -> "list[NodeRow]":
    """Return the recorded nodes; where no head has ever led, this machine as it is now. Nothing is written."""
    from db.reads import machines
    from db.writes import terms

    nodes = machines.nodes(context.database)
    if terms.is_led_by_heads(context.database):
        return nodes
    local = _local_node()
    return [_as_row(local, next((node for node in nodes if node.id == local.id), None))]


def record_local_node(context: Context) -> None:
    """Record this machine, for a command that changes its row, where no head has ever led to do it."""
    from db.writes import terms

    if not terms.is_led_by_heads(context.database):
        context.store.record_nodes([_local_node()])


def up_nodes() -> list[Node]:
    """Return the nodes that are up, with all their devices; cordoned and quarantined ones are among them."""
    with open_context() as context:
        return up_nodes_of(list_nodes(context))


def up_nodes_of(rows: "Iterable[NodeRow]") -> list[Node]:
    """Return those of recorded nodes that are up."""
    return [
        Node(
            row.id,
            row.host,
            row.cpus,
            row.memory_bytes,
            tuple(Device(device.kind, device.index, device.serial, device.memory_bytes) for device in row.devices),
        )
        for row in rows
        if row.is_up
    ]


def _local_node() -> Node:
    from orchestrator.executor import LOCAL_NODE
    from workers.machine.devices import describe_node

    return describe_node(LOCAL_NODE)


def _as_row(node: Node, recorded: "NodeRow | None") -> "NodeRow":
    """Return the row that recording a node would write: its description, and what was decided about it before."""
    from datetime import UTC, datetime

    from db.reads.machines import NodeRow

    now = datetime.now(UTC)
    return NodeRow(
        id=node.id,
        host=node.host,
        address=node.address,
        cpus=node.cpus,
        memory_bytes=node.memory_bytes,
        versions=node.versions,
        first_seen_at=recorded.first_seen_at if recorded else now,
        last_seen_at=now,
        is_up=True,
        cordon=recorded.cordon if recorded else None,
        cordon_reason=recorded.cordon_reason if recorded else None,
        cordoned_at=recorded.cordoned_at if recorded else None,
        not_ready_reason=None,
        checks=node.checks,
        toolchains=node.toolchains,
        devices=_merge_devices(node.devices, recorded.devices if recorded else ()),
    )


def _merge_devices(devices: "Iterable[Device]", recorded: "Iterable[DeviceRow]") -> "tuple[DeviceRow, ...]":
    """Return the rows of devices with their quarantine; quarantined devices that are gone are kept."""
    from dataclasses import asdict, replace

    from db.reads.machines import DeviceRow

    rows = {
        (device.kind, device.index): DeviceRow(**asdict(device), quarantine_reason=None, quarantined_at=None)
        for device in devices
    }
    for row in recorded:
        if row.quarantine_reason is not None:
            current = rows.get((row.kind, row.index), row)
            rows[row.kind, row.index] = replace(
                current, quarantine_reason=row.quarantine_reason, quarantined_at=row.quarantined_at
            )
    return tuple(rows[key] for key in sorted(rows))
