"""What tasks wait for, in words. The same situation has the same words, so that nothing is written anew each time."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from jobs.task import GIB, Node, Pin, Resources
from orchestrator.scheduling.shapes import Shape, able, shape_of, shapes_of
from orchestrator.scheduling.spots import Spot

MOST_OBSTACLES = 3  #: that are named one by one


def devices_in_words(need: Resources) -> str:
    """`8 x mi300x`; logical devices of the host's own cores are called so."""
    return f"{need.devices} x {need.device_kind}{' device' if need.device_kind == 'cpu' else ''}"


def needs_in_words(need: Resources) -> str:
    """What a task holds of a node: `8 x mi300x, 1 core, 2.0 GiB`."""
    parts = [devices_in_words(need)] if need.devices else []
    parts += [f"{need.cpus} core{'' if need.cpus == 1 else 's'}", f"{need.memory_bytes / GIB:.1f} GiB"]
    return ", ".join(parts)


def pin_in_words(pin: Pin, need: Resources) -> str:
    """`node a`, `a/mi300x:3`, `a/mi300x:0,1`."""
    return f"{pin.node}/{need.device_kind}:{','.join(map(str, pin.devices))}" if pin.devices else f"node {pin.node}"


def waits_for_room(need: Resources, pin: Pin | None) -> str:
    """A task that has to wait until others have ended."""
    alone = ""
    if need.is_quiet:
        alone = " that runs nothing else" if pin is None and need.nodes == 1 else " with nothing else running there"
    return f"needs {needs_in_words(need)} free {_where(need, pin)}{alone}, not kept for an earlier task"


def waits_for_spot(need: Resources, spot: Spot) -> str:
    """A task that has to wait for the devices that what it is compared with was measured on."""
    where = f"on {pin_in_words(Pin(*spot), need)}"
    alone = " with nothing else running there" if need.is_quiet else ""
    return f"needs {needs_in_words(need)} free {where}{alone}, where what it is compared with ran"


def waits_to_compare(stage: str, subject: str) -> str:
    """A task that begins after the one that it is compared with."""
    return f"after {stage} of {subject}, which it is compared with"


def _where(need: Resources, pin: Pin | None) -> str:
    if pin is not None:
        return f"on {pin_in_words(pin, need)}"
    return "on a node" if need.nodes == 1 else f"on each of {need.nodes} nodes at once"


def waits_for_people(need: Resources, pin: Pin | None, obstacles: Sequence[str]) -> str:
    """A task whose nodes or devices are up, but closed or quarantined until somebody opens them."""
    what = devices_in_words(need) if need.devices else f"{need.cpus} x core"
    where = "" if pin is None and need.nodes == 1 else f" {_where(need, pin)}"
    more = len(obstacles) - MOST_OBSTACLES
    named = ", ".join(obstacles[:MOST_OBSTACLES]) + (f" and {more} more" if more > 0 else "")
    return f"needs {what}{where}; {named}"


def waits_for_lock(name: str, trouble: str = "") -> str:
    """A task whose toolchain's packages are not known yet."""
    return f"for toolchain {name} to be resolved" + (f"; it is tried again: {_line(trouble)}" if trouble else "")


def waits_for_toolchain(name: str, nodes: Sequence[str]) -> str:
    """A task whose toolchain is being built."""
    more = len(nodes) - MOST_OBSTACLES
    return f"for toolchain {name} on node {', '.join(nodes[:MOST_OBSTACLES])}" + (
        f" and {more} more" if more > 0 else ""
    )


def waits_for_closed(name: str, closed: Sequence[str], failed: Mapping[str, str]) -> str:
    """A task whose toolchain none of the open nodes can build."""
    told = [f"node {node}: {_line(why)}" for node, why in sorted(failed.items())][:MOST_OBSTACLES]
    return f"for toolchain {name} on node {', '.join(sorted(closed))}, which is closed; {'; '.join(told)}"


def _line(text: str) -> str:
    return " ".join(text.split())


def obstacles(
    need: Resources,
    nodes: Iterable[Node],
    closed: Mapping[str, str],
    quarantined: Mapping[tuple[str, str, int], str],
    devices: Collection[int] = (),
) -> list[str]:
    """Which of these nodes are closed, and which of the devices on the others are quarantined, each with the reason;
    of all of a node's devices, or of some."""
    names = sorted(node.id for node in nodes)
    shut = [f"node {name} is closed: {closed[name]}" for name in names if name in closed]
    open_names = set(names) - set(closed)
    bad = [
        f"{name}/{kind}:{index} is quarantined: {reason}"
        for (name, kind, index), reason in sorted(quarantined.items())
        if name in open_names and kind == need.device_kind and (not devices or index in devices)
    ]
    return shut + bad


def lacks(need: Resources, shapes: Mapping[Shape, int]) -> str:
    """What no node has, or what the nodes don't have together; for a need that they can't meet."""
    if not shapes:
        return "needs a node; the cluster has none"
    wants: list[tuple[str, int, int]] = []
    if need.devices:
        wants.append((need.device_kind, need.devices, max(shape.count(need.device_kind) for shape in shapes)))
    wants.append(("core", need.cpus, max(shape.cpus for shape in shapes)))
    for noun, wanted, most in wants:
        if wanted > most:
            return f"needs {wanted} x {noun}; the cluster has " + (f"{most} on a node at most" if most else "none")
    most_memory = max(shape.memory_bytes for shape in shapes)
    if need.memory_bytes > most_memory:
        return f"needs {need.memory_bytes / GIB:.0f} GiB of memory; the largest node has {most_memory / GIB:.0f}"
    if need.nodes > 1:
        return f"needs {need.nodes} nodes with {needs_in_words(need)} each; the cluster has {able(need, shapes)}"
    return "needs a node that has it all at once"


def lacks_pinned(need: Resources, pin: Pin, node: Node | None) -> str | None:
    """Why a pinned task can't run on its node as that is; None when it can."""
    if need.nodes > 1:
        return f"needs {need.nodes} nodes, and is pinned to node {pin.node} alone"
    if node is None:
        return f"is pinned to node {pin.node}, which is not up or not known"
    if pin.devices:
        known = sorted(device.index for device in node.devices if device.kind == need.device_kind)
        if not set(known).issuperset(pin.devices):
            has = f"only {', '.join(map(str, known))}" if known else f"no {need.device_kind}"
            return f"is pinned to {pin_in_words(pin, need)}, which node {pin.node} does not have: it has {has}"
        if need.devices != len(pin.devices):
            return f"needs {devices_in_words(need)}, and is pinned to {pin_in_words(pin, need)} alone"
    if not shape_of(node).meets(need):
        return f"is pinned to node {pin.node}: " + lacks(need, shapes_of([node])).replace("the cluster", "it")
    return None
