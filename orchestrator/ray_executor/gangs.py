"""Gangs, attempts that run on several nodes: the part of each node, and one result of them all. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from jobs.state import Failure, FailureKind
from jobs.task import Artifact, Attempt, Gang, TaskResult

#: Failures of a gang's nodes that follow from another node's failure: reported where nothing better is known.
CONSEQUENCES = frozenset({FailureKind.CANCELLED, FailureKind.REQUEUED})


def part_of(attempt: Attempt, rank: int, address: str, port: int) -> Attempt:
    """Return the part of a gang's attempt for the node of one rank; rank 0 listens at the address and port."""
    return replace(attempt, places=(attempt.places[rank],), gang=Gang(rank, len(attempt.places), address, port))


def merge_results(nodes: Sequence[str], results: Mapping[str, TaskResult], lost_on: Collection[str]) -> TaskResult:
    """Merge the results of all nodes, which are in order of rank; rank 0's measurements are the attempt's.

    `results` are in the order in which they came; those of the nodes in `lost_on` were made up for a lost node.
    """
    first = results[nodes[0]]
    if len(nodes) == 1:
        return first
    ranked = [results[node] for node in nodes]
    return replace(
        first,
        failure=first_cause(results, lost_on),
        artifacts=tuple(_rename(rank, file) for rank, result in enumerate(ranked) for file in result.artifacts),
        processes=tuple(process for result in ranked for process in result.processes),
        warnings=tuple(dict.fromkeys(warning for result in ranked for warning in result.warnings)),
        unfit=tuple(unfit for result in ranked for unfit in result.unfit),
        lost=tuple(dict.fromkeys(artifact for result in ranked for artifact in result.lost)),
        duration_s=max((result.duration_s for result in ranked if result.duration_s is not None), default=None),
    )


def first_cause(results: Mapping[str, TaskResult], lost_on: Collection[str]) -> Failure | None:
    """Return the failure of a gang: the loss of a node, else the first failure that is no consequence of another one.

    What other nodes report of a lost one is worth nothing: ranks that are ended one after another look to them like the
    kernel that needs memory.
    """
    failures = {node: result.failure for node, result in results.items() if result.failure}
    losses = [
        failure for node, failure in failures.items() if node in lost_on or failure.kind is FailureKind.LEASE_LOST
    ]
    causes = [failure for failure in failures.values() if failure.kind not in CONSEQUENCES]
    return next(iter(losses or causes or failures.values()), None)


def _rename(rank: int, artifact: Artifact) -> Artifact:
    """Files of several nodes have the same names: those of rank 0 keep them."""
    return replace(artifact, name=f"rank{rank}-{artifact.name}") if rank else artifact
