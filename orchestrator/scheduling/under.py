"""What tasks that run under a toolchain want: nodes that have it, or that are to build it. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from db.store import KeptLock
from jobs.state import Failure, FailureKind
from jobs.task import Node
from orchestrator.scheduling import words

SHOWN_CHARACTERS = 400


@dataclass(frozen=True)
class Choice:
    """The nodes of a task under a toolchain, of those that are open and could take it."""

    nodes: frozenset[str] = frozenset()  #: where it may start now; none: there are not enough
    asked: tuple[str, ...] = ()  #: those that are to build it, or to tell what they built
    reason: str = ""  #: what it waits for where there are not enough
    failure: Failure | None = None  #: there will not be enough, for the rest can't build it


def choose(kept: KeptLock, able: Sequence[Node], shut: Sequence[Node], count: int, avoids: Collection[str]) -> Choice:
    """Choose among the nodes that are `able` to take a task that needs so many of them.

    `shut` are those that would be if they were not closed, `avoids` those that come last.
    """
    name, digest = kept.lock.name, kept.digest
    failed = {node.id: why for node in (*able, *shut) if (why := node.toolchains.get(digest))}
    left = [node for node in able if node.id not in failed]
    has_told = kept.compiler_flags is not None
    asked = tuple(sorted(node.id for node in left if not has_told or digest not in node.toolchains))
    others = [node for node in left if node.id not in avoids]
    pool = others if len(others) >= count else left
    ready = frozenset(node.id for node in pool if has_told and digest in node.toolchains)
    if len(ready) >= count:
        return Choice(ready, asked)
    if len(left) >= count:
        return Choice(asked=asked, reason=words.waits_for_toolchain(name, asked))
    opened = [node.id for node in shut if node.id not in failed]
    if len(left) + len(opened) >= count:
        return Choice(asked=asked, reason=words.waits_for_closed(name, opened, failed))
    node, why = min(failed.items())
    return Choice(asked=asked, failure=failure_of(f"node {node}: {why}"))


def failure_of(said: str) -> Failure:
    """What ends tasks whose toolchain can't be had; `said` has uv's own words."""
    message = " ".join(said.split())
    if len(message) > SHOWN_CHARACTERS:
        message = f"{message[:SHOWN_CHARACTERS]}..."
    return Failure(FailureKind.TOOLCHAIN, message, said)


def to_build(choices: Iterable[tuple[str, Choice]], quiet: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The nodes that are asked to build each toolchain, by its name; not those that are to be left alone now."""
    asked: dict[str, set[str]] = {}
    for name, choice in choices:
        asked.setdefault(name, set()).update(node for node in choice.asked if node not in quiet)
    return {name: tuple(sorted(nodes)) for name, nodes in asked.items() if nodes}
