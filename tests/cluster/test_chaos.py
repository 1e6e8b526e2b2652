"""Whatever is killed, cut off, stopped, filled up or forgotten: every task reaches an end, each result is stored once,
and no process is left. One cluster goes through all of it; what its database says is checked again and again."""

import os
import random
import signal
import time
from collections.abc import Iterator
from itertools import cycle

import pytest
from sqlalchemy import select, update

from db.reads import results
from db.schema.tables import attempts
from jobs.state import JobState
from tests.acceptance.haloctl import DEADLINE_S, until
from tests.cluster import faults
from tests.cluster.conftest import Cluster, running_cluster
from tests.cluster.faults import DEVICES, HALF_NODE, WHOLE_NODE, ended_as, host_of, until_over, until_running
from tests.cluster.hosts import LEADS, until_equal
from tests.cluster.work import STUBBORN
from tests.integration.disks import mounted

NODES = ("n1", "n2", "n3")
SMALL = "n3"  #: its disk is
SMALL_DISK_BYTES = 64 << 20
HEADS = 20
RULES_BROKEN = 5

#: `python -c WRITE FOLDER`: makes a file that the small disk has no room for.
WRITE = f"""
with open("large", "wb") as file:
    for _ in range({SMALL_DISK_BYTES >> 20}):
        file.write(bytes(1 << 20))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with three nodes of eight devices; the last one has a small disk."""
    with running_cluster() as cluster:
        cluster.start_head("head")
        for name in NODES:
            cluster.plug(name, HALOCTL_CPU_DEVICES=f"{DEVICES}")
        with mounted(cluster.hosts[SMALL].data, SMALL_DISK_BYTES):
            for name in NODES:
                cluster.start_node(name, waits=False)
            until_equal(cluster.node_states, dict.fromkeys(NODES, "up"))
            yield cluster


def test_what_ran_on_dead_cut_off_and_stopped_nodes_is_done_once_and_elsewhere(cluster: Cluster) -> None:
    works = [cluster.submit_work(1, WHOLE_NODE, STUBBORN) for _ in range(3)]
    for work in works:
        until_running(cluster, work, 1)
    dead, cut, stopped = (host_of(cluster, work) for work in works)
    first, second, third = works
    faults.kill_node(cluster, dead)
    cut.cut()
    stopped.send(signal.SIGSTOP)
    cluster.start_node(dead.name, waits=False)
    first.open()
    until(lambda: not cut.find(str(second.folder)), "what is cut off has ended by its lease")
    second.open()
    third.open()
    assert ended_as(cluster, third) == {("node_lost", "succeeded"): 1}
    stopped.send(signal.SIGCONT)  # the late one finds its gate open
    cut.heal()
    for work in works:
        assert ended_as(cluster, work) == {("node_lost", "succeeded"): 1}
    assert [faults.nodes_of(cluster, work)[1] for work in (second, third)] == [dead.name, dead.name]
    until_over(cluster, *works)
    until_equal(cluster.node_states, dict.fromkeys(NODES, "up"))


def test_a_gang_of_ranks_that_loses_a_node_or_its_link_ends_as_a_whole_and_is_measured_once(cluster: Cluster) -> None:
    gang = cluster.submit_ranks()
    until_running(cluster, gang, 2)
    lost, left = faults.hosts_of(cluster, gang)
    earlier = set(left.find(str(gang.folder)))
    faults.kill_node(cluster, lost)
    until_running(cluster, gang, 4)
    assert not earlier & set(left.find(str(gang.folder))), "nothing of the attempt before"
    host, peer = faults.hosts_of(cluster, gang)
    assert lost not in (host, peer)
    cluster.start_node(lost.name, waits=False)
    host.cut_from(peer)
    until_equal(lambda: faults.ends(cluster, gang), ["node_lost", "node_lost", "None"], 2 * DEADLINE_S)
    host.heal_to(peer)
    gang.open()
    assert ended_as(cluster, gang) == {("node_lost", "node_lost", "succeeded"): 1}
    with cluster.database() as database:
        (measured,) = results.results(database, job=gang.job, metric="ttft_ms")
    assert [rank["rank"] for rank in measured.context["ranks"]] == [0, 1]
    until_over(cluster, gang)


def test_a_killed_supervisor_or_fork_server_or_agent_or_raylet_costs_an_attempt(cluster: Cluster) -> None:
    by_supervisor, by_fork_server = works = [cluster.submit_work(1, WHOLE_NODE, STUBBORN) for _ in range(2)]
    for work in works:
        until_running(cluster, work, 1)
    supervisor, fork_server = faults.above(cluster, by_supervisor)[0], faults.above(cluster, by_fork_server)[1]
    supervisor.kill()
    fork_server.kill()
    for work in works:
        until_running(cluster, work, 2)
    faults.above(cluster, by_supervisor)[2].kill()
    until_running(cluster, by_supervisor, 3)
    faults.program(host_of(cluster, by_fork_server), faults.RAYLET).kill()
    for work in works:
        work.open()
    assert ended_as(cluster, by_supervisor) == {("lease_lost", "node_lost", "succeeded"): 1}
    ((first, second, last),) = ended_as(cluster, by_fork_server)
    assert (first, last) == ("lease_lost", "succeeded")
    assert second in ("node_lost", "lease_lost"), "whatever of the node ends first"
    until_over(cluster, *works)


def test_a_killed_stage_process_is_the_programs_own_failure(cluster: Cluster) -> None:
    work = cluster.submit_work(1, program=STUBBORN)
    until_running(cluster, work, 1)
    faults.stage_process(cluster, work).kill()
    until_equal(lambda: cluster.state(work.job), JobState.FAILED)
    assert "out_of_memory" in faults.describe_attempts(cluster, work)
    until_over(cluster, work)


def test_what_is_cancelled_while_everything_is_killed_leaves_nothing(cluster: Cluster) -> None:
    work = cluster.submit_work(2 * len(NODES), HALF_NODE, STUBBORN)
    until_running(cluster, work, 2 * len(NODES))
    faults.kill_head(cluster)
    cluster.hosts["n1"].until_found(faults.AGENT).kill()
    cancel = cluster.hosts["client"].start("cancel", work.job)
    cluster.start_head("head")
    faults.kill_node(cluster, cluster.hosts["n2"])
    cluster.start_node("n2", waits=False)
    assert cancel.end().code == 0, cancel.err
    until_equal(lambda: cluster.state(work.job), JobState.CANCELLED)
    until_over(cluster, work)


def test_running_attempts_outlive_the_head_the_control_store_and_the_heads_raylet(cluster: Cluster) -> None:
    work = cluster.submit_work(len(NODES), HALF_NODE, STUBBORN)
    until_running(cluster, work, len(NODES))
    faults.kill_head(cluster)
    took_s = faults.working_again_s(cluster, lambda: cluster.start_head("head"))
    print(f"\na head on a Ray that is alive works again after {took_s:.1f} s")
    for name in (faults.CONTROL_STORE, faults.RAYLET):
        faults.program(cluster.hosts["head"], name).kill()
        probe = cluster.submit_work(1)
        probe.open()
        assert ended_as(cluster, probe) == {("succeeded",): 1}
    work.open()
    assert ended_as(cluster, work) == {("succeeded",): len(NODES)}
    until_over(cluster, work)


def test_a_head_whose_ray_was_wiped_works_again_and_does_all_that_was_lost(cluster: Cluster) -> None:
    work = cluster.submit_work(len(NODES), HALF_NODE, STUBBORN)
    until_running(cluster, work, len(NODES))
    faults.wipe(cluster)
    took_s = faults.working_again_s(cluster, lambda: cluster.start_head("head"))
    print(f"\na head whose Ray was wiped works again after {took_s:.1f} s")
    work.open()
    assert ended_as(cluster, work) == {("node_lost", "succeeded"): len(NODES)}
    until_over(cluster, work)
    until_equal(cluster.node_states, dict.fromkeys(NODES, "up"))


def test_heads_that_are_killed_again_and_again_lose_nothing(cluster: Cluster) -> None:
    seed = int(os.environ.get("CHAOS_SEED", random.randrange(1 << 32)))
    print(f"\nCHAOS_SEED={seed}")
    chance = random.Random(seed)
    runs = cluster.submit_work(len(NODES), HALF_NODE, STUBBORN)
    until_running(cluster, runs, len(NODES))
    flows = [cluster.submit_work(3) for _ in range(HEADS)]
    faults.kill_head(cluster)
    for flow, waits in zip(flows, cycle((True, False, False, False)), strict=False):
        head = cluster.daemons["head"] = cluster.hosts["head"].start("head", "--host", cluster.hosts["head"].address)
        if waits:
            head.until_says(LEADS)
        flow.open()
        time.sleep(chance.uniform(0.0, 1.0))
        faults.kill_head(cluster)
    cluster.start_head("head")
    runs.open()
    until_over(cluster, runs, *flows)
    ended = [kinds for work in (runs, *flows) for kinds in ended_as(cluster, work)]
    assert {kind for kinds in ended for kind in kinds} <= {"succeeded", "requeued", "node_lost", "lease_lost"}
    assert all(kinds[-1] == "succeeded" for kinds in ended)


def test_a_database_that_restarts_or_stays_away_costs_no_result(cluster: Cluster) -> None:
    assert cluster.postgres
    work, later = cluster.submit_work(4, program=STUBBORN), cluster.submit_work(4, program=STUBBORN)
    until_running(cluster, later, 4)
    with cluster.hosts["head"].cable.entered():
        cluster.postgres.restart()
        work.open()
        assert ended_as(cluster, work) == {("succeeded",): 4}
        offset = len(cluster.daemons["head"].err)
        with cluster.postgres.stopped():
            later.open()
            faults.until_gone(cluster, later)
            until(lambda: "trying again" in cluster.daemons["head"].err[offset:], "the head has noticed")
    assert ended_as(cluster, later) == {("succeeded",): 4}
    until_over(cluster, work, later)


def test_a_full_disk_sends_a_task_elsewhere(cluster: Cluster) -> None:
    small = cluster.hosts[SMALL]
    works = [cluster.submit_work(1, WHOLE_NODE) for _ in NODES]
    for work in works:
        until_running(cluster, work, 1)
    (there,) = [work for work in works if small.find(str(work.folder))]
    large = cluster.submit_work(1, program=WRITE)
    there.open()
    until(
        lambda: "out_of_disk" in faults.describe_attempts(cluster, large),
        lambda: faults.describe_attempts(cluster, large),
    )
    for work in works:
        work.open()
    assert ended_as(cluster, large) == {("out_of_disk", "succeeded"): 1}
    assert faults.nodes_of(cluster, large)[0] == SMALL
    assert list((small.data / "work").iterdir()) == []
    until_over(cluster, large, *works)


def test_the_checker_finds_what_was_planted_among_all_this(cluster: Cluster) -> None:
    """Runs last, since the rows that it plants stay."""
    work = cluster.submit_work(2)
    until_running(cluster, work, 2)
    work.open()
    until_over(cluster, work)
    client = cluster.hosts["client"]
    assert client.answer("db", "check").startswith("no invariant is violated")
    first, second = (f"{work.job}-{number:02}-1" for number in (1, 2))
    held = select(attempts.c.places).where(attempts.c.id == first).scalar_subquery()
    with cluster.database() as database, database.writing() as connection:
        connection.execute(update(attempts).where(attempts.c.id == second).values(places=held))
    done = client.run("db", "check")
    assert done.code == RULES_BROKEN, done.err
    assert first in done.out and second in done.out
