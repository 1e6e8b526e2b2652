"""No wait for Ray keeps a head from leading or from ending."""

import signal
import time
from collections.abc import Iterator

import pytest

from tests.acceptance.haloctl import Running
from tests.cluster import faults
from tests.cluster.conftest import Cluster, running_cluster
from tests.cluster.faults import CONTROL_STORE
from tests.cluster.hosts import LEADS

HANG_S = 15.0


@pytest.fixture
def starting() -> Iterator[tuple[Cluster, Running]]:
    """A head whose Ray is being started: its control store has just appeared."""
    with running_cluster() as cluster:
        host = cluster.hosts["head"]
        yield cluster, host.start("head", "--host", host.address)


def test_a_head_whose_control_store_is_killed_while_it_starts_leads_all_the_same(
    starting: tuple[Cluster, Running],
) -> None:
    cluster, head = starting
    faults.program(cluster.hosts["head"], CONTROL_STORE).kill()
    head.until_says(LEADS)


def test_a_head_ends_at_a_signal_while_its_ray_hangs(starting: tuple[Cluster, Running]) -> None:
    cluster, head = starting
    faults.program(cluster.hosts["head"], CONTROL_STORE).suspend()
    head.signal(signal.SIGTERM)
    began = time.monotonic()
    assert head.end().code == 0
    assert time.monotonic() - began < HANG_S, "Ray itself waits for twice as long"
