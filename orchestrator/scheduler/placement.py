"""The devices on which an earlier run was measured, for what is compared with it to run on the same ones. Pure."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from db.reads.runs import HOST
from jobs.task import Device, Node, Place, Resources


class Placement(NamedTuple):
    """A node and the indices of some of its devices; without indices all devices of the node are equivalent."""

    node: str
    devices: tuple[int, ...] = ()


def same_placement(
    places: Sequence[Place], resources: Resources, node: Node | None, quarantined: Collection[int]
) -> Placement | None:
    """Return the devices of an earlier attempt on their node as it is now.

    A device is recognised by its serial where it has one, as are measurements. None when some devices are gone or
    quarantined, or when the attempt was a gang.
    """
    if node is None or len(places) != 1 or resources.nodes != 1:
        return None
    measured = places[0].devices
    if not resources.devices or all(device.kind == HOST and not device.serial for device in measured):
        return Placement(node.id)
    indices = {_identity(device): device.index for device in node.devices if device.kind == resources.device_kind}
    chosen = tuple(indices[_identity(device)] for device in measured if _identity(device) in indices)
    if len(chosen) != resources.devices or not set(chosen).isdisjoint(quarantined):
        return None
    return Placement(node.id, chosen)


def _identity(device: Device) -> str:
    return device.serial or str(device.index)
