"""What nodes have when nothing runs on them. A cluster of many nodes has few shapes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jobs.task import Node, Resources


class Shape(NamedTuple):
    """What a node can give at most."""

    cpus: int
    memory_bytes: int
    devices: tuple[tuple[str, int], ...]  #: how many of each kind

    def count(self, kind: str) -> int:
        """How many devices of a kind it has."""
        return next((count for name, count in self.devices if name == kind), 0)

    def meets(self, need: Resources) -> bool:
        """Whether it could take a task, or one node's part of a gang."""
        return (
            need.cpus <= self.cpus
            and need.memory_bytes <= self.memory_bytes
            and (not need.devices or need.devices <= self.count(need.device_kind))
        )


def shape_of(node: Node, counts: Mapping[str, int] | None = None) -> Shape:
    """A node's shape; with `counts` of devices instead of all that it has."""
    counts = Counter(device.kind for device in node.devices) if counts is None else counts
    return Shape(node.cpus, node.memory_bytes, tuple(sorted(counts.items())))


def able(need: Resources, shapes: Mapping[Shape, int]) -> int:
    """How many nodes could take a task, or its part; `shapes` says how many nodes there are of each."""
    return sum(count for shape, count in shapes.items() if shape.meets(need))


def shapes_of(nodes: Iterable[Node]) -> Counter[Shape]:
    """How many nodes there are of each shape."""
    return Counter(map(shape_of, nodes))
