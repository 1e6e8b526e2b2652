"""An attempt that was handed to a node, or to the nodes of a gang, and what came back from each."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jobs.state import FailureKind
from jobs.task import Artifact, Attempt, Gang, TaskResult

#: Failures of a gang's nodes that came of another one's: told where nothing better is known.
FOLLOWING_KINDS = frozenset({FailureKind.CANCELLED, FailureKind.HANDED_BACK})


@dataclass
class Handed:
    """Where an attempt is, and the results that its nodes have given so far."""

    id: str
    epoch: int
    nodes: Sequence[str]  #: by rank
    group: str | None = None  #: what holds its devices in Ray's books
    is_ending: bool = False  #: its end was asked for
    begun_on: set[str] = field(default_factory=set)  #: nodes that said that they have it; others can't end it yet
    results: dict[str, TaskResult] = field(default_factory=dict)  #: by node, as they came
    lost_on: set[str] = field(default_factory=set)  #: nodes whose results are what became of them

    def is_open_on(self, node: str) -> bool:
        """Whether a node has still to tell what came of it."""
        return node in self.nodes and node not in self.results

    @property
    def open_nodes(self) -> Sequence[str]:
        """Those that have still to tell."""
        return [node for node in self.nodes if node not in self.results]

    def take(self, node: str, result: TaskResult) -> None:
        """Take a node's result, the first one that it gives."""
        if self.is_open_on(node):
            self.results[node] = result

    def merged(self) -> TaskResult:
        """One result of all: a node's loss, else the first failure that is no other's consequence, else rank 0's.

        What other nodes saw of a lost one is worth nothing: ranks that were ended one after another look to them like
        the kernel that needs memory.
        """
        first = self.results[self.nodes[0]]
        if len(self.nodes) == 1:
            return first
        by_node = {node: result.failure for node, result in self.results.items() if result.failure}
        losses = [one for node, one in by_node.items() if node in self.lost_on or one.kind is FailureKind.LEASE_LOST]
        failures = list(by_node.values())
        causes = [failure for failure in failures if failure.kind not in FOLLOWING_KINDS]
        ranked = [self.results[node] for node in self.nodes]
        return replace(
            first,
            failure=next(iter(losses or causes or failures), None),
            artifacts=tuple(_named(rank, one) for rank, result in enumerate(ranked) for one in result.artifacts),
            processes=tuple(one for result in ranked for one in result.processes),
            warnings=tuple(dict.fromkeys(one for result in ranked for one in result.warnings)),
            unfit=tuple(one for result in ranked for one in result.unfit),
            lost=tuple(dict.fromkeys(one for result in ranked for one in result.lost)),
            wall_s=max(result.wall_s for result in ranked),
        )


def share(attempt: Attempt, rank: int, address: str, port: int) -> Attempt:
    """What the node of one rank is handed of a gang's attempt."""
    return replace(attempt, places=(attempt.places[rank],), gang=Gang(rank, len(attempt.places), address, port))


def _named(rank: int, artifact: Artifact) -> Artifact:
    """Files of several nodes have the same names: those of rank 0 keep them."""
    return replace(artifact, name=f"rank{rank}-{artifact.name}") if rank else artifact
