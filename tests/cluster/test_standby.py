"""A head whose Ray loses a process keeps the lead, although another head waits for it."""

from collections.abc import Iterator

import pytest

from tests.cluster import faults
from tests.cluster.conftest import Cluster, running_cluster
from tests.cluster.faults import CONTROL_STORE, RAYLET, ended_as, until_over, until_running
from tests.cluster.hosts import CPU_DEVICES


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head on one host, one that stands by on another, and a node."""
    with running_cluster() as cluster:
        cluster.start_head("head")
        second = cluster.plug_with_database("second")
        standby = cluster.daemons["second"] = second.start("head", "--host", second.address, "--standby")
        standby.until_says("stands by")
        cluster.plug("n1")
        cluster.start_node("n1")
        yield cluster


@pytest.mark.parametrize("program", [RAYLET, CONTROL_STORE])
def test_a_head_keeps_the_lead_when_its_ray_loses_a_process(cluster: Cluster, program: str) -> None:
    head, standby = cluster.daemons["head"], cluster.daemons["second"]
    work = cluster.submit_work(CPU_DEVICES)
    until_running(cluster, work, CPU_DEVICES)
    faults.program(cluster.hosts["head"], program).kill()
    later = cluster.submit_work(CPU_DEVICES)
    later.open()
    work.open()
    assert ended_as(cluster, later) == {("succeeded",): CPU_DEVICES}
    assert ended_as(cluster, work) == {("succeeded",): CPU_DEVICES}
    assert head.process.poll() is None
    assert all(" info head: stands by: " in line for line in standby.err.splitlines())
    until_over(cluster, work, later)
