"""How long a cluster takes to work again after its head was killed: with Ray alive, and with Ray's state wiped.

Both are counted from the start of the next head until it has done a task that was queued meanwhile.
"""

import pytest

from tests.cluster import faults
from tests.cluster.conftest import Cluster, running_cluster
from tests.cluster.faults import DEVICES, HALF_NODE, ended_as, until_over, until_running

NODES = ("n1", "n2")
ADOPTED_AIM_S, WIPED_AIM_S = 10.0, 30.0


@pytest.mark.benchmark
def test_a_killed_head_is_followed_by_another() -> None:
    with running_cluster() as cluster:
        cluster.start_head("head")
        cluster.bring_up(*NODES, HALOCTL_CPU_DEVICES=f"{DEVICES}")
        work = cluster.submit_work(len(NODES), HALF_NODE)
        until_running(cluster, work, len(NODES))
        faults.kill_head(cluster)
        adopted_s = _working_again_s(cluster)
        faults.wipe(cluster)
        wiped_s = _working_again_s(cluster)
        work.open()
        assert ended_as(cluster, work) == {("node_lost", "succeeded"): len(NODES)}, "the wipe alone cost an attempt"
        until_over(cluster, work)
    print()
    print(f"recovery after kill -9 of the head, running attempts adopted: {adopted_s:.1f} s (aim {ADOPTED_AIM_S:g} s)")
    print(f"recovery after kill -9 of the head, Ray wiped: {wiped_s:.1f} s (aim {WIPED_AIM_S:g} s)")


def _working_again_s(cluster: Cluster) -> float:
    return faults.working_again_s(cluster, lambda: cluster.start_head("head"))
