"""Where something was measured, as devices that are there now: what is compared with it runs there. Pure."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from db.runs import HOST
from jobs.task import Device, Node, Place, Resources


class Spot(NamedTuple):
    """A node and devices of it, by their indices; where there are none, any of the node are the same."""

    node: str
    devices: tuple[int, ...] = ()


def spot_of(places: Sequence[Place], need: Resources, node: Node | None, bad: Collection[int]) -> Spot | None:
    """The same devices on their node as it is now; None where some are gone or `bad`, or a gang ran.

    A device is known by its serial where it has one, as what is measured on it is.
    """
    if node is None or len(places) != 1 or need.nodes != 1:
        return None
    measured = places[0].devices
    if not need.devices or all(device.kind == HOST and not device.serial for device in measured):
        return Spot(node.id)
    has = {_name(device): device.index for device in node.devices if device.kind == need.device_kind}
    found = tuple(has[_name(device)] for device in measured if _name(device) in has)
    if len(found) != need.devices or not set(found).isdisjoint(bad):
        return None
    return Spot(node.id, found)


def _name(device: Device) -> str:
    return device.serial or str(device.index)
