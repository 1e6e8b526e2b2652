"""An attempt on several nodes comes to one result, and what is not stored yet is still expected of its nodes."""

from dataclasses import replace

from jobs.state import Failure, FailureKind
from jobs.task import Artifact, Measurement, Process, TaskResult
from orchestrator.ray_executor.gangs import merge_results
from orchestrator.ray_executor.in_flight import InFlightAttempt, InFlightAttempts

LOG = Artifact("1-1.log", "log", "0" * 64, 1)


def result(failure: FailureKind | None = None, wall_s: float = 1.0) -> TaskResult:
    process = Process(("true",), 0, wall_s, 1)
    told = Failure(failure, f"it was {failure}") if failure else None
    return TaskResult(
        "1-1", 1, told, (LOG,), (Measurement("load_s", (wall_s,)),), ("slow",), (process,), duration_s=wall_s
    )


def merged(*results: TaskResult, came: tuple[int, ...] = (0, 1)) -> TaskResult:
    nodes = [f"n{rank}" for rank in range(len(results))]
    return merge_results(nodes, {nodes[rank]: results[rank] for rank in came}, lost_on=())


def kind(result: TaskResult) -> FailureKind | None:
    return result.failure.kind if result.failure else None


def test_one_nodes_result_is_the_attempts() -> None:
    only = result()
    assert merged(only, came=(0,)) is only


def test_a_gangs_result_has_the_numbers_of_its_first_node_and_the_files_of_all() -> None:
    merged_result = merged(result(wall_s=1.0), result(wall_s=2.0))
    assert [measurement.samples for measurement in merged_result.measurements] == [(1.0,)]
    assert [artifact.name for artifact in merged_result.artifacts] == ["1-1.log", "rank1-1-1.log"]
    assert ([process.wall_s for process in merged_result.processes], merged_result.duration_s) == ([1.0, 2.0], 2.0)
    assert (merged_result.failure, merged_result.warnings) == (None, ("slow",))


def test_a_gang_fails_with_the_first_failure_that_is_not_of_its_own_making() -> None:
    lost, cancelled = result(FailureKind.NODE_LOST), result(FailureKind.CANCELLED)
    assert kind(merged(cancelled, lost, came=(0, 1))) is FailureKind.NODE_LOST
    assert kind(merged(result(), lost)) is FailureKind.NODE_LOST
    assert kind(merged(cancelled, result())) is FailureKind.CANCELLED
    wrong = result(FailureKind.WRONG_NUMBERS)
    assert kind(merged(lost, wrong, came=(1, 0))) is FailureKind.WRONG_NUMBERS


def test_what_other_nodes_saw_of_a_node_that_is_gone_does_not_count() -> None:
    """Whatever ended its ranks one after another looked to them like the kernel that needs memory."""
    killed = result(FailureKind.OUT_OF_MEMORY)
    assert kind(merged(killed, result(FailureKind.LEASE_LOST))) is FailureKind.LEASE_LOST
    assert kind(merged(killed, result(FailureKind.NODE_LOST))) is FailureKind.OUT_OF_MEMORY, "its ranks lost a peer"


def test_a_node_is_expected_to_have_what_it_told_until_that_is_stored() -> None:
    ended: list[str] = []
    released: list[str] = []
    attempts = InFlightAttempts(lambda attempt: ended.append(attempt.id), lambda attempt: released.append(attempt.id))
    attempts.by_id["1-1"] = InFlightAttempt("1-1", 1, ["n0", "n1"])
    assert not attempts.add_result("n0", replace(result(), epoch=2)), "of another attempt"
    assert attempts.add_result("n0", result(FailureKind.OUT_OF_MEMORY))
    assert (ended, released, attempts.has_results) == (["1-1"], [], False)
    attempts.lose_all_on("n1", "it is gone")
    assert (released, attempts.nodes) == (["1-1"], set())
    assert (attempts.expected("n0"), attempts.expected("n1")) == ({"1-1": 1}, {}), "n1 has nothing any more"
    assert [kind(result) for result in attempts.collect()] == [FailureKind.NODE_LOST]
    assert (attempts.expected("n0"), attempts.is_stored("1-1"), attempts.collect()) == ({"1-1": 1}, False, [])


def test_what_was_collected_may_be_forgotten_once_it_is_stored() -> None:
    attempts = InFlightAttempts(lambda attempt: None, lambda attempt: None)
    attempts.by_id["1-1"] = InFlightAttempt("1-1", 1, ["n0"])
    attempts.add_result("n0", result())
    attempts.collect()
    assert [attempt.id for attempt in attempts.take_stored()] == ["1-1"]
    assert (list(attempts.take_stored()), attempts.is_stored("1-1"), attempts.add_result("n0", result())) == (
        [],
        True,
        False,
    )
