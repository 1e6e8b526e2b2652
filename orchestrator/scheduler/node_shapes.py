"""What nodes offer when nothing runs on them. A cluster of many nodes has few shapes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jobs.task import Node, Resources


class NodeShape(NamedTuple):
    """The whole capacity of a node."""

    cpus: int
    memory_bytes: int
    devices: tuple[tuple[str, int], ...]  #: number of each kind

    def count(self, kind: str) -> int:
        """Return how many devices of a kind the node has."""
        return next((count for name, count in self.devices if name == kind), 0)

    def can_fit(self, resources: Resources) -> bool:
        """Whether an empty node fits a task, or one node's part of a gang."""
        return (
            resources.cpus <= self.cpus
            and resources.memory_bytes <= self.memory_bytes
            and (not resources.devices or resources.devices <= self.count(resources.device_kind))
        )


def node_shape(node: Node, device_counts: Mapping[str, int] | None = None) -> NodeShape:
    """Return a node's shape, with `device_counts` by kind in place of all the devices that it has."""
    counts = Counter(device.kind for device in node.devices) if device_counts is None else device_counts
    return NodeShape(node.cpus, node.memory_bytes, tuple(sorted(counts.items())))


def count_shapes(nodes: Iterable[Node]) -> Counter[NodeShape]:
    """Return how many nodes there are of each shape."""
    return Counter(map(node_shape, nodes))


def count_fitting(resources: Resources, shapes: Mapping[NodeShape, int]) -> int:
    """Return how many nodes, counted by shape, could fit a task or its part."""
    return sum(count for shape, count in shapes.items() if shape.can_fit(resources))
