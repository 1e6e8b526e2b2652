"""A head that was stopped while another one took the lead wakes up as one that leads no more."""

import signal
from collections.abc import Iterator

import pytest

from tests.acceptance.haloctl import Running, until
from tests.cluster.conftest import Cluster, running_cluster
from tests.cluster.faults import ended_as, until_over, until_running
from tests.cluster.hosts import CPU_DEVICES, LEADS

SESSIONS = "pg_stat_activity WHERE client_addr = '{}' AND pid <> pg_backend_pid()"  #: of one host's processes
ROUNDS = 3


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head with a node, and a second host for another head with a node."""
    with running_cluster() as cluster:
        cluster.start_head("head")
        cluster.plug_with_database("second")
        for name in ("n1", "n2"):
            cluster.plug(name)
        cluster.start_node("n1")
        yield cluster


def until_says_again(head: Running, text: str, offset: int) -> None:
    """Wait for a text on stderr behind an offset."""
    until(lambda: text in head.err[offset:], lambda: f"{text!r}, but: {head.err[offset:]}")


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_head_that_wakes_up_after_another_took_the_lead_changes_nothing(cluster: Cluster) -> None:
    assert cluster.postgres
    zombie, second = cluster.daemons["head"], cluster.hosts["second"]
    works = []
    for number in range(ROUNDS):
        offset = len(zombie.err)
        work = cluster.submit_work(CPU_DEVICES)
        until_running(cluster, work, CPU_DEVICES)
        zombie.signal(signal.SIGSTOP)
        with cluster.hosts["head"].cable.entered():
            cluster.postgres.cut(SESSIONS.format(cluster.hosts["head"].address))
        winner = cluster.daemons["second"] = second.start("head", "--host", second.address)
        winner.until_says(LEADS)
        if not number:
            cluster.start_node("n2", "second")
        zombie.signal(signal.SIGCONT)
        work.open()
        until_says_again(zombie, "stands by", offset)
        assert {kinds[-1] for kinds in ended_as(cluster, work)} == {"succeeded"}
        winner.process.kill()
        winner.end()
        until_says_again(zombie, LEADS, offset)
        works.append(work)
    assert zombie.process.poll() is None
    until_over(cluster, *works)
