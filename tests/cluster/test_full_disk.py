"""Full disks of a head and of the artifact store: they are told, cost no result, and end when there is space again."""

import os
import random
import subprocess
import time
from collections.abc import Iterator

import pytest

from jobs.state import JobState
from tests.acceptance.haloctl import until
from tests.cluster import faults
from tests.cluster.conftest import Cluster, cluster_on_sqlite
from tests.cluster.faults import ended_as, until_gone, until_over, until_running
from tests.cluster.hosts import CPU_DEVICES
from tests.cluster.pulses import check_journal
from tests.integration.disks import fill, mounted

DISK_BYTES = 64 << 20
FULL = "the disk is full"
DISK_ROUNDS = 6
PULSES = 4 * CPU_DEVICES  #: tasks of a second each


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """The head's data folder is on a separate small disk."""
    with cluster_on_sqlite() as cluster, mounted(cluster.hosts["head"].data, DISK_BYTES):
        cluster.start_head("head")
        cluster.plug("n1")
        cluster.start_node("n1")
        yield cluster
        cluster.close()


@pytest.fixture
def with_small_store() -> Iterator[Cluster]:
    """The artifact store that all share is on a separate small disk."""
    with cluster_on_sqlite() as cluster, mounted(cluster.folder / "artifacts", DISK_BYTES):
        cluster.start_head("head")
        cluster.plug("n1")
        cluster.start_node("n1")
        yield cluster
        cluster.close()


def test_a_full_disk_of_the_heads_own_costs_no_result(cluster: Cluster) -> None:
    head, client = cluster.daemons["head"], cluster.hosts["client"]
    work = cluster.submit_work(2 * CPU_DEVICES)
    until_running(cluster, work, CPU_DEVICES)
    filling = fill(cluster.hosts["head"].data)
    work.open()
    head.until_says(FULL)
    until_gone(cluster, work)
    refused = client.run("nodes", "drain", "n1")
    assert (refused.code, FULL in refused.err) == (6, True), refused.err
    assert head.process.poll() is None
    filling.unlink()
    assert ended_as(cluster, work) == {("succeeded",): 2 * CPU_DEVICES}
    head.until_says("is reachable again")
    until_over(cluster, work)
    assert client.answer("db", "check").startswith("no invariant is violated")
    after = cluster.submit_work(1)
    after.open()
    assert ended_as(cluster, after) == {("succeeded",): 1}


def test_a_full_store_is_nobodys_failure_and_what_was_made_waits_for_it(with_small_store: Cluster) -> None:
    cluster, client = with_small_store, with_small_store.hosts["client"]
    work = cluster.submit_work(2 * CPU_DEVICES)
    until_running(cluster, work, CPU_DEVICES)
    filling = fill(cluster.folder / "artifacts")
    work.open()
    until_gone(cluster, work)
    until(lambda: "no space is left on it; free some" in client.answer("nodes"), "it says why it takes nothing")
    assert cluster.state(work.job) is JobState.RUNNING
    filling.unlink()
    assert ended_as(cluster, work) == {("succeeded",): 2 * CPU_DEVICES}
    until_over(cluster, work)
    assert client.answer("db", "check").startswith("no invariant is violated")


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_a_heads_disk_that_fills_up_again_and_again_costs_no_result(cluster: Cluster) -> None:
    chance, works = random.Random(int(os.environ.get("CHAOS_SEED", "1"))), []
    head = cluster.hosts["head"]
    for _ in range(DISK_ROUNDS):
        works.append(cluster.submit_pulses(PULSES))
        time.sleep(chance.uniform(0, 3))
        filling = fill(head.data)
        time.sleep(chance.uniform(0, 6))
        if chance.random() < 0.5:
            faults.kill_head(cluster)
            if chance.random() < 0.5:
                cluster.daemons["head"] = head.start("head", "--host", head.address)  # on a full disk
                time.sleep(chance.uniform(0, 6))
        filling.unlink()
        if cluster.daemons["head"].process.poll() is not None:
            cluster.start_head("head")
    until_over(cluster, *works)
    for work in works:
        assert {kinds[-1] for kinds in ended_as(cluster, work)} == {"succeeded"}
        check_journal(cluster, work)
    assert cluster.hosts["client"].answer("db", "check").startswith("no invariant is violated")


@pytest.mark.chaos
def test_a_store_that_turns_read_only_is_waited_for_also_by_the_next_head(with_small_store: Cluster) -> None:
    cluster, store = with_small_store, str(with_small_store.folder / "artifacts")
    work = cluster.submit_work(CPU_DEVICES)
    until_running(cluster, work, CPU_DEVICES)
    subprocess.run(["mount", "-o", "remount,ro", store], check=True)
    work.open()
    until_gone(cluster, work)
    until(lambda: "it can't be written" in cluster.hosts["client"].answer("nodes"), "it says why it takes nothing")
    faults.kill_head(cluster)
    cluster.start_head("head")
    subprocess.run(["mount", "-o", "remount,rw", store], check=True)
    assert ended_as(cluster, work) == {("succeeded",): CPU_DEVICES}
    until_over(cluster, work)
