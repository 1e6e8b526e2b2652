"""The messages between a head and the agents of its nodes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.task import Attempt, Node, TaskResult
from jobs.toolchains import Toolchain
from workers.artifacts import Location


class StaleTerm(Exception):
    """The caller's term has ended: the agent has accepted a newer leader."""

    def __init__(self, term: int, newest: int) -> None:
        super().__init__(term, newest)
        self.term, self.newest = term, newest

    def __str__(self) -> str:
        return f"term {self.newest} has begun, and this is term {self.term}: another head leads"


@dataclass(frozen=True)
class AgentConfig:
    """What an agent is started with: its node, its data folder and its artifact store."""

    node: str
    data: Path  #: for work/, logs/ and cache/; on a node of a cluster HALOCTL_DATA goes before it
    artifacts: Location | None = None  #: the store; by default in `data`
    mark: str | None = None  #: the store's mark (workers.agent.store_mark), where it must be another machine's store
    address: str = "127.0.0.1"  #: where other nodes reach it
    lease_s: float = math.inf
    raylet: str = ""  #: Ray's id of the node
    is_member: bool = False  #: whether the node is in a cluster: its data folder is then this agent's alone


@dataclass(frozen=True)
class LaunchRequest:
    """An attempt to start, and the Ray placement group that holds its devices."""

    attempt: Attempt
    group: str | None = None


@dataclass(frozen=True)
class AgentStatus:
    """The state of an agent that has just accepted a leader."""

    node: Node
    toolchain: Toolchain
    raylet: str
    attempts: Mapping[str, str | None]  #: those that run or have results here, each with its placement group
    clock: float  #: the agent's, for `Agent.renew`
    cordon_reason: str | None  #: why the node takes no new attempts; None: it takes them


@dataclass(frozen=True)
class PollResponse:
    """The results and changes since the previous poll."""

    results: Sequence[TaskResult]
    cursor: int  #: to be passed to the next poll as `after`
    cordon_reason: str | None  #: why the node takes no new attempts; None: it takes them
    node: Node | None = None  #: the node's description, where it differs from the one sent before
    built_toolchains: Sequence[Toolchain] = ()  #: those built since the previous poll
