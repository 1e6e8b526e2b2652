"""Why tasks wait, as text. Equal situations give equal text, so that nothing is written to the database again."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from jobs.task import GIB, Node, Pin, Resources
from orchestrator.scheduler.node_shapes import NodeShape, count_fitting, count_shapes, node_shape
from orchestrator.scheduler.placement import Placement

MAX_LISTED = 3  #: nodes or devices that are listed one by one


def format_devices(resources: Resources) -> str:
    """Format devices as `8 x mi300x`; logical devices of the host's own cores as `8 x cpu device`."""
    return f"{resources.devices} x {resources.device_kind}{' device' if resources.device_kind == 'cpu' else ''}"


def format_resources(resources: Resources) -> str:
    """Format what a task holds of a node, as `8 x mi300x, 1 core, 2.0 GiB`."""
    parts = [format_devices(resources)] if resources.devices else []
    parts += [
        f"{resources.cpus} core{'' if resources.cpus == 1 else 's'}",
        f"{resources.memory_bytes / GIB:.1f} GiB",
    ]
    return ", ".join(parts)


def format_pin(pin: Pin, resources: Resources) -> str:
    """Format a pin as `node a`, `a/mi300x:3` or `a/mi300x:0,1`."""
    if not pin.devices:
        return f"node {pin.node}"
    return f"{pin.node}/{resources.device_kind}:{','.join(map(str, pin.devices))}"


def waits_for_capacity(resources: Resources, pin: Pin | None) -> str:
    """The reason of a task that waits until others have ended."""
    where, is_any_node = _where(resources, pin), pin is None and resources.nodes == 1
    if resources.is_exclusive:
        where += " that runs nothing else" if is_any_node else " with nothing else running there"
    return f"needs {format_resources(resources)} free {where}, not reserved for an earlier task"


def waits_for_placement(resources: Resources, placement: Placement) -> str:
    """The reason of a task that waits for the devices on which the task it is compared with was measured."""
    where = f"on {format_pin(Pin(*placement), resources)}"
    alone = " with nothing else running there" if resources.is_exclusive else ""
    return f"needs {format_resources(resources)} free {where}{alone}, where the task it is compared with ran"


def waits_to_compare(stage: str, subject: str) -> str:
    """The reason of a task that begins after the one that it is compared with."""
    return f"after {stage} of {subject}, which it is compared with"


def waits_for_operator(resources: Resources, pin: Pin | None, obstacles: Sequence[str]) -> str:
    """The reason of a task whose nodes or devices are up, but cordoned or quarantined."""
    what = format_devices(resources) if resources.devices else f"{resources.cpus} x core"
    where = "" if pin is None and resources.nodes == 1 else f" {_where(resources, pin)}"
    return f"needs {what}{where}; {_list(obstacles)}"


def waits_for_lock(name: str, error: str = "") -> str:
    """The reason of a task whose toolchain is not resolved yet."""
    return f"for toolchain {name} to be resolved" + (f"; trying again: {_one_line(error)}" if error else "")


def waits_for_build(name: str, nodes: Sequence[str]) -> str:
    """The reason of a task whose toolchain is being built."""
    return f"for toolchain {name} on node {_list(nodes)}"


def waits_for_uncordon(name: str, cordoned: Sequence[str], failed: Mapping[str, str]) -> str:
    """The reason of a task whose toolchain failed to build on all nodes but cordoned ones."""
    failures = [f"node {node}: {_one_line(why)}" for node, why in sorted(failed.items())][:MAX_LISTED]
    return f"for toolchain {name} on node {', '.join(sorted(cordoned))}, which is cordoned; {'; '.join(failures)}"


def list_obstacles(
    resources: Resources,
    nodes: Iterable[Node],
    cordoned: Mapping[str, str],
    quarantined: Mapping[tuple[str, str, int], str],
    devices: Collection[int] = (),
) -> list[str]:
    """List which of these nodes are cordoned and which devices of the others are quarantined, each with the reason.

    With `devices`, only the devices of these indices count.
    """
    names = sorted(node.id for node in nodes)
    of_nodes = [f"node {name} is cordoned: {cordoned[name]}" for name in names if name in cordoned]
    schedulable = set(names) - set(cordoned)
    of_devices = [
        f"{name}/{kind}:{index} is quarantined: {reason}"
        for (name, kind, index), reason in sorted(quarantined.items())
        if name in schedulable and kind == resources.device_kind and (not devices or index in devices)
    ]
    return of_nodes + of_devices


def exceeds_cluster(resources: Resources, shapes: Mapping[NodeShape, int]) -> str:
    """Say which resource no node has, or the nodes lack together, for resources that the cluster can't fit."""
    if not shapes:
        return "needs a node; the cluster has none"
    limits: list[tuple[str, int, int]] = []
    if resources.devices:
        kind = resources.device_kind
        limits.append((kind, resources.devices, max(shape.count(kind) for shape in shapes)))
    limits.append(("core", resources.cpus, max(shape.cpus for shape in shapes)))
    for noun, requested, largest in limits:
        if requested > largest:
            available = f"{largest} on a node at most" if largest else "none"
            return f"needs {requested} x {noun}; the cluster has {available}"
    largest_bytes = max(shape.memory_bytes for shape in shapes)
    if resources.memory_bytes > largest_bytes:
        return f"needs {resources.memory_bytes / GIB:.0f} GiB of memory; the largest node has {largest_bytes / GIB:.0f}"
    if resources.nodes > 1:
        fitting = count_fitting(resources, shapes)
        return f"needs {resources.nodes} nodes with {format_resources(resources)} each; the cluster has {fitting}"
    return f"needs {format_resources(resources)} on one node; no node has all of it"


def exceeds_pin(resources: Resources, pin: Pin, node: Node | None) -> str | None:
    """Say why a pinned task can never run on its node; None when it can."""
    if resources.nodes > 1:
        return f"needs {resources.nodes} nodes, and is pinned to node {pin.node} alone"
    if node is None:
        return f"is pinned to node {pin.node}, which is not up or not known"
    if pin.devices:
        indices = sorted(device.index for device in node.devices if device.kind == resources.device_kind)
        if not set(indices).issuperset(pin.devices):
            available = f"only {', '.join(map(str, indices))}" if indices else f"no {resources.device_kind}"
            return f"is pinned to {format_pin(pin, resources)}; node {pin.node} has {available}"
        if resources.devices != len(pin.devices):
            return f"needs {format_devices(resources)}, and is pinned to {format_pin(pin, resources)} alone"
    if not node_shape(node).can_fit(resources):
        excess = exceeds_cluster(resources, count_shapes([node])).replace("the cluster", "it")
        return f"is pinned to node {pin.node}: {excess}"
    return None


def _where(resources: Resources, pin: Pin | None) -> str:
    if pin is not None:
        return f"on {format_pin(pin, resources)}"
    return "on a node" if resources.nodes == 1 else f"on each of {resources.nodes} nodes at once"


def _list(items: Sequence[str]) -> str:
    more = len(items) - MAX_LISTED
    return ", ".join(items[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())
