"""The nodes that a command can know of: those that a head knows, or this machine where no head has ever led."""

from typing import TYPE_CHECKING

from jobs.task import Device, Node
from orchestrator.context import Context, opened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from db.machines import NodeRow


def seen(world: Context) -> "list[NodeRow]":
    """The nodes that a head knows; where none has ever led it is this machine, as it is now."""
    from db import machines, terms
    from orchestrator.ray_executor.connection import LOCAL
    from workers.devices import describe_node

    if not terms.is_led_by_heads(world.database):
        world.store.see_nodes([describe_node(LOCAL)])
    return machines.nodes(world.database)


def up() -> list[Node]:
    """Those of them that are up, with their devices; what is closed or quarantined is among them."""
    with opened() as world:
        return up_among(seen(world))


def up_among(rows: "Iterable[NodeRow]") -> list[Node]:
    """The same of rows."""
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
