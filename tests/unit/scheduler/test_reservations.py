"""Large tasks are not starved: capacity is reserved for them, and backfilled tasks do not delay them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from db.store import OpenTask, RunningAttempt
from jobs.state import TaskState
from jobs.task import GIB, Device, Node, Place, Resources
from orchestrator.scheduler.decision import PATIENCE_S, Start
from tests.queued import GPU, decided, gpus, node, on, running, started, task, waits

HOUR_S = 3600.0


def busy(name: str, count: int, expected_s: float) -> OpenTask:
    return task(name, gpus(count), state=TaskState.RUNNING, expected_s=expected_s, timeout_s=HOUR_S)


def small(name: str, expected_s: float | None, job: int = 9) -> OpenTask:
    return task(name, gpus(1), job=job, expected_s=expected_s, timeout_s=HOUR_S)


def test_small_tasks_of_later_jobs_do_not_starve_a_large_one() -> None:
    holds, large = busy("01", 1, 100), task("02", gpus(8), job=1)
    actions = decided([holds, large, small("03", 1000)], [node(mi300x=8)], running(holds, on("a", 0)))
    assert list(waits(actions)) == ["02", "03"]
    nodes = [node(mi300x=8), node("b", mi300x=1)]
    assert started(decided([holds, large, small("03", 1000)], nodes, running(holds, on("a", 0)))) == {
        "03": (on("b", 0),)
    }


def test_what_is_expected_to_end_in_time_goes_before_it() -> None:
    holds, large = busy("01", 1, 100), task("02", gpus(8), job=1)
    tasks = [holds, large, small("brief", 99), small("long", 101), small("unknown", None)]
    assert started(decided(tasks, [node(mi300x=8)], running(holds, on("a", 0)))) == {"brief": (on("a", 1),)}
    assert started(decided(tasks, [node(mi300x=8)], running(holds, on("a", 0), since_s=50))) == {}


def test_what_fits_beside_it_goes_before_it_for_as_long_as_it_takes() -> None:
    holds, large = busy("01", 4, 100), task("02", gpus(6), job=1)
    tasks = [holds, large, *(small(f"{number:02}", 5000) for number in range(3, 7))]
    actions = decided(tasks, [node(cpus=16, mi300x=8)], running(holds, on("a", 0, 1, 2, 3)))
    assert list(started(actions)) == ["03", "04"]
    wide = task("05", Resources(memory_bytes=9 * GIB), job=2, timeout_s=HOUR_S)
    large = task("02", Resources(memory_bytes=12 * GIB, devices=6, device_kind=GPU), job=1)
    assert started(decided([holds, large, wide], [node(mi300x=8)], running(holds, on("a", 0, 1, 2, 3)))) == {}


def test_a_task_that_overstays_is_expected_to_take_as_long_again() -> None:
    holds, large = busy("01", 1, 100), task("02", gpus(8), job=1)
    tasks = [holds, large, small("fits", 70), small("does not", 90)]
    actions = decided(tasks, [node(mi300x=8)], running(holds, on("a", 0), since_s=120))
    assert list(started(actions)) == ["fits"]


def test_who_has_waited_long_trusts_no_expectations_but_timeouts() -> None:
    holds, large = busy("01", 1, 1000), task("02", gpus(8), job=1)
    brief = [small("brief", 5), task("bound", gpus(1), job=9, timeout_s=60.0)]
    attempt = running(holds, on("a", 0), since_s=-PATIENCE_S)
    soon = decided([holds, large, *brief], [node(mi300x=8)], attempt, at_s=PATIENCE_S)
    assert set(started(soon)) == {"brief", "bound"}
    late = decided([holds, large, *brief], [node(mi300x=8)], attempt, at_s=PATIENCE_S + 1)
    assert list(started(late)) == ["bound"]


def test_the_node_that_opens_soonest_is_kept() -> None:
    slow, quick, large = busy("01", 8, 500), busy("02", 1, 100), task("03", gpus(8), job=1)
    attempts = [running(slow, on("a", *range(8))), running(quick, on("b", 0))]
    nodes = [node("a", mi300x=8), node("b", mi300x=8)]
    assert list(waits(decided([slow, quick, large, small("04", 200)], nodes, *attempts))) == ["03", "04"]
    attempts = [running(slow, on("a", *range(8)), since_s=450), running(quick, on("b", 0))]
    assert started(decided([slow, quick, large, small("04", 200)], nodes, *attempts)) == {"04": (on("b", 1),)}


def test_a_gang_gets_all_its_nodes_at_once_or_none() -> None:
    gang, nodes = task("01", gpus(8, nodes=2)), [node(name, mi300x=8) for name in "abc"]
    assert started(decided([gang], nodes)) == {"01": (on("a", *range(8)), on("b", *range(8)))}
    holds = [busy("02", 8, 100), busy("03", 1, 50)]
    attempts = [running(holds[0], on("a", *range(8))), running(holds[1], on("b", 0))]
    actions = decided([*holds, gang, small("04", 80), small("05", 40)], nodes, *attempts)
    assert list(started(actions)) == ["05"]
    assert waits(actions)["01"].startswith("needs 8 x mi300x, 1 core, 1.0 GiB free on each of 2 nodes at once")
    alone = decided([gang], nodes[:1])
    assert waits(alone) == {
        "01": "needs 2 nodes with 8 x mi300x, 1 core, 1.0 GiB each; the cluster has 1",
    }


def test_nodes_are_kept_for_quiet_tasks_too() -> None:
    holds = task("01", state=TaskState.RUNNING, expected_s=100, timeout_s=HOUR_S)
    quiet = task("02", Resources(is_exclusive=True), job=1)
    later = [
        task("03", job=2, expected_s=90, timeout_s=HOUR_S),
        task("04", job=3, expected_s=110, timeout_s=HOUR_S),
    ]
    sooner = task("00", state=TaskState.RUNNING, expected_s=50, timeout_s=HOUR_S)
    attempts = [running(task, on("a")) for task in (sooner, holds)]
    actions = decided([sooner, holds, quiet, *later], [node()], *attempts)
    assert list(started(actions)) == ["03"]


def test_the_first_of_each_kind_of_device_has_a_node_kept() -> None:
    h100 = [Resources(devices=count, device_kind="h100") for count in (1, 8)]
    holds = [busy("01", 1, 100), task("02", h100[0], state=TaskState.RUNNING, timeout_s=HOUR_S)]
    attempts = [running(holds[0], on("a", 0)), running(holds[1], Place("b", (Device("h100", 0),)))]
    large = [task("03", gpus(8), job=1), task("04", h100[1], job=2)]
    later = [small("05", 1000), task("06", h100[0], job=9, timeout_s=2 * HOUR_S)]
    actions = decided([*holds, *large, *later], [node("a", mi300x=8), node("b", h100=8)], *attempts)
    assert list(waits(actions)) == ["03", "04", "05", "06"]


def test_in_a_large_cluster_several_nodes_empty_at_once() -> None:
    nodes = [node(f"n{number}", mi300x=8) for number in range(10)]
    holds = [busy(f"h{number}", 1, 100) for number in range(10)]
    attempts = [running(task, on(f"n{number}", 0)) for number, task in enumerate(holds)]
    large = [task(f"large{number}", gpus(8), job=1 + number) for number in range(3)]
    later = [task(f"{number:02}", gpus(7), job=9, timeout_s=HOUR_S) for number in range(10)]
    actions = decided([*holds, *large, *later], nodes, *attempts)
    assert {place.node for places in started(actions).values() for place in places} == {f"n{n}" for n in range(2, 10)}


def test_within_a_job_whatever_fits_is_started() -> None:
    holds, large = busy("01", 1, 100), task("02", gpus(8), job=1)
    actions = decided([holds, large, small("03", 1000, job=1)], [node(mi300x=8)], running(holds, on("a", 0)))
    assert list(started(actions)) == ["03"]


NEEDS = st.builds(
    Resources,
    cpus=st.integers(0, 3),
    memory_bytes=st.integers(0, 8).map(lambda gib: gib * GIB),
    devices=st.integers(0, 4),
    device_kind=st.just(GPU),
    is_exclusive=st.booleans(),
    nodes=st.sampled_from([1, 1, 2]),
)


@given(st.lists(st.tuples(NEEDS, st.integers(1, 50)), min_size=2, max_size=10))
def test_where_expectations_are_right_the_first_that_waits_is_not_delayed(needs: list[tuple[Resources, int]]) -> None:
    nodes = [node("a", mi300x=4), node("b", mi300x=2)]
    tasks = [task(f"{number:02}", need, job=number, expected_s=s) for number, (need, s) in enumerate(needs)]
    possible = [task for task in tasks if not any(action for action in decided([task], nodes) if not _starts(action))]
    first = next(iter(waits(decided(possible, nodes))), None)
    if first is not None:
        before = [task for task in possible if task.subject <= first]
        assert begins_s(possible, nodes)[first] <= begins_s(before, nodes)[first]


def _starts(action: object) -> bool:
    return isinstance(action, Start)


def begins_s(tasks: Sequence[OpenTask], nodes: Sequence[Node]) -> dict[str, float]:
    """Return when each task begins if all take as long as expected."""
    left, now_s = {task.id: task for task in tasks}, 0.0
    begun: dict[str, float] = {}
    attempts: list[tuple[float, RunningAttempt]] = []
    while left:
        for action in decided(list(left.values()), nodes, *(attempt for _, attempt in attempts), at_s=now_s):
            if isinstance(action, Start):
                begun[action.task.subject] = now_s
                ends_s = now_s + (action.task.expected_s or 0.0)
                attempts.append((ends_s, running(action.task, *action.places, since_s=-now_s)))
                del left[action.task.id]
        now_s = min(ends_s for ends_s, _ in attempts)
        attempts = [(ends_s, attempt) for ends_s, attempt in attempts if ends_s > now_s]
    return begun
