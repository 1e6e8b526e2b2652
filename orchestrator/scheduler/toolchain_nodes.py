"""The nodes for tasks that need a toolchain: those that have built it, or that are to build it. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from db.store import StoredLock
from jobs.state import Failure, FailureKind
from jobs.task import Node
from orchestrator.scheduler import reasons

SHOWN_CHARACTERS = 400


@dataclass(frozen=True)
class ToolchainNodes:
    """The nodes that a task may use with its toolchain, among those that are schedulable and fit it."""

    ready: frozenset[str] = frozenset()  #: where it may start now; empty when there are not enough
    to_build: tuple[str, ...] = ()  #: nodes that should build the toolchain, or report what they built
    reason: str = ""  #: what the task waits for when there are not enough
    failure: Failure | None = None  #: there will never be enough, because the other nodes failed to build it


def choose_nodes(
    stored: StoredLock, fitting: Sequence[Node], cordoned: Sequence[Node], count: int, avoids: Collection[str]
) -> ToolchainNodes:
    """Choose `count` nodes for a task, among those that are schedulable and fit it.

    `cordoned` are the nodes that would fit if they were not cordoned; `avoids` names nodes to use last.
    """
    name, digest = stored.lock.name, stored.digest
    failed = {node.id: why for node in (*fitting, *cordoned) if (why := node.toolchains.get(digest))}
    remaining = [node for node in fitting if node.id not in failed]
    has_flags = stored.compiler_flags is not None  # reported by the first node that builds it
    to_build = tuple(sorted(node.id for node in remaining if not has_flags or digest not in node.toolchains))
    preferred = [node for node in remaining if node.id not in avoids]
    pool = preferred if len(preferred) >= count else remaining
    ready = frozenset(node.id for node in pool if has_flags and digest in node.toolchains)
    if len(ready) >= count:
        return ToolchainNodes(ready, to_build)
    if len(remaining) >= count:
        return ToolchainNodes(to_build=to_build, reason=reasons.waits_for_build(name, to_build))
    after_uncordon = [node.id for node in cordoned if node.id not in failed]
    if len(remaining) + len(after_uncordon) >= count:
        return ToolchainNodes(to_build=to_build, reason=reasons.waits_for_uncordon(name, after_uncordon, failed))
    node, why = min(failed.items())
    return ToolchainNodes(to_build=to_build, failure=toolchain_failure(f"node {node}: {why}"))


def toolchain_failure(output: str) -> Failure:
    """Return the failure of tasks whose toolchain is not available; `output` has uv's own words."""
    message = " ".join(output.split())
    if len(message) > SHOWN_CHARACTERS:
        message = f"{message[:SHOWN_CHARACTERS]}..."
    return Failure(FailureKind.TOOLCHAIN, message, output)


def group_builds(
    choices: Iterable[tuple[str, ToolchainNodes]], exclusive: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the nodes that should build each toolchain, by its name, without nodes in exclusive use."""
    nodes: dict[str, set[str]] = {}
    for name, choice in choices:
        nodes.setdefault(name, set()).update(node for node in choice.to_build if node not in exclusive)
    return {name: tuple(sorted(names)) for name, names in nodes.items() if names}
