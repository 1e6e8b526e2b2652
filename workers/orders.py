"""What a head and the agents of its nodes tell each other."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.task import Attempt, Node, TaskResult
from jobs.toolchains import Toolchain
from workers.artifacts import Location


class Superseded(Exception):
    """An agent obeys a newer head than the one that calls."""

    def __init__(self, term: int, newest: int) -> None:
        super().__init__(term, newest)
        self.term, self.newest = term, newest

    def __str__(self) -> str:
        return f"term {self.newest} has begun, and this is term {self.term}: another head leads"


@dataclass(frozen=True)
class Post:
    """Where an agent is, and what it is told of the cluster."""

    node: str
    data: Path  #: for work/, logs/ and cache/; on a node of a cluster HALOCTL_DATA goes before it
    artifacts: Location | None = None  #: the store; by default in `data`
    mark: str | None = None  #: of the store (workers.store_mark), where it has to be the one of another machine
    address: str = "127.0.0.1"  #: where other nodes reach it
    lease_s: float = math.inf
    raylet: str = ""  #: Ray's name of the node
    is_member: bool = False  #: of a cluster: its data folder is this agent's alone


@dataclass(frozen=True)
class Order:
    """An attempt to run, and the name of what holds its devices in Ray's books."""

    attempt: Attempt
    group: str | None = None


@dataclass(frozen=True)
class Report:
    """What an agent tells a head that begins to lead it."""

    node: Node
    toolchain: Toolchain
    raylet: str
    has: Mapping[str, str | None]  #: attempts that run or have results here, each with its group
    clock: float  #: the agent's, for `renew`
    closed: str | None


@dataclass(frozen=True)
class Answer:
    """What a poll brings."""

    results: Sequence[TaskResult]
    number: int  #: for the next poll: what came until now
    closed: str | None  #: why the node wants nothing new
    node: Node | None = None  #: as it describes itself now, where that is not what it last told
    built: Sequence[Toolchain] = ()  #: what was built since it last told
