"""A head with SQLite on a full disk says so, loses nothing, and continues when there is space again."""

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Cluster, network_of_hosts
from tests.cluster.faults import ended_as, until_gone, until_over, until_running
from tests.cluster.hosts import CPU_DEVICES
from tests.integration.disks import fill, mounted

DISK_BYTES = 64 << 20
FULL = "the disk is full"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head with its data folder on a separate small disk, and a node."""
    with network_of_hosts() as cluster:
        head = cluster.plug("head")
        cluster.url = head.environment["HALOCTL_DATABASE_URL"] = f"sqlite:///{head.data / 'haloctl.db'}"
        cluster.plug_with_database("client")
        cluster.plug("n1")
        with mounted(head.data, DISK_BYTES):
            cluster.start_head("head")
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
