"""How long it takes until the next task begins after single faults, anywhere and on the node that was hit; and the
longest standstill under a fault every few seconds. `make chaos` runs it, RECOVERY_ROUNDS times each fault.
"""

import math
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from jobs.errors import HaloError
from tests.acceptance.haloctl import until
from tests.cluster import faults
from tests.cluster.conftest import Cluster, cluster_on_sqlite, running_cluster
from tests.cluster.faults import AGENT, CONTROL_STORE, RAYLET
from tests.cluster.hosts import CPU_DEVICES, Host
from tests.cluster.pulses import begins, check_journal, uptime_s
from tests.cluster.work import Work

NODES = ("n1", "n2", "n3")
ROUNDS = int(os.environ.get("RECOVERY_ROUNDS", "4"))
DENSE_S = float(os.environ.get("RECOVERY_DENSE_S", "300"))
FAULT_EVERY_S = 6.0
CUT_S = 21.0  #: longer than a lease and its margin
BATCH = 30 * len(NODES) * CPU_DEVICES  #: tasks of half a minute
DISPATCHED_S = 0.3  #: what begins so soon after a fault had been dispatched before it
MOST_S = 15.0  #: after a single fault, without the outage itself
STARTS = 2.0  #: or so many times what it took to bring up head and nodes, on a machine that is busy with other things
LONGEST_STANDSTILL_S = 60.0


@dataclass
class Stream:
    """A cluster that always has short tasks to run."""

    cluster: Cluster
    start_s: float  #: what it took to bring up head and nodes
    works: list[Work] = field(default_factory=list)

    def go_on(self) -> None:
        """Have tasks for the next half minute."""
        waiting = sum(BATCH - len(begins([work])) for work in self.works[-2:])
        if waiting < BATCH:
            self.works.append(self.cluster.submit_pulses(BATCH))

    def began_on(self, after_s: float) -> dict[str, float]:
        """Return when the first task began on each node after a time."""
        first: dict[str, float] = {}
        for line in begins(self.works[-4:]):
            if line.at_s > after_s:
                first.setdefault(line.node, line.at_s)
        return first

    def until_everywhere(self, after_s: float) -> dict[str, float]:
        """Wait until a task has begun on every node after a time; return when."""

        def is_everywhere() -> bool:
            self.go_on()
            revive(self.cluster)
            return self.began_on(after_s).keys() == set(NODES)

        until(is_everywhere, lambda: f"tasks begin on all nodes, but {self.began_on(after_s)} of {after_s}")
        return self.began_on(after_s)

    def end(self) -> None:
        """Check all that is stored, and the journals."""
        faults.until_over(self.cluster, *self.works)
        for work in self.works:
            check_journal(self.cluster, work)
        assert self.cluster.hosts["client"].answer("db", "check").startswith("no invariant is violated")


def revive(cluster: Cluster) -> None:
    """Start daemons that have ended, as systemd does."""
    for name, daemon in cluster.daemons.items():
        if daemon.process.poll() is not None:
            host = cluster.hosts[name]
            if name == "head":
                cluster.daemons[name] = host.start("head", "--host", host.address)
            else:
                cluster.start_node(name, waits=False)


def kill_agent(cluster: Cluster, host: Host) -> None:
    faults.program(host, AGENT).kill()


def kill_raylet(cluster: Cluster, host: Host) -> None:
    faults.program(host, RAYLET).kill()


def kill_node(cluster: Cluster, host: Host) -> None:
    """All that it has, as a power cut does."""
    faults.kill_node(cluster, host)


def kill_head(cluster: Cluster, host: Host) -> None:
    faults.kill_head(cluster)


def kill_control_store(cluster: Cluster, host: Host) -> None:
    faults.program(cluster.hosts["head"], CONTROL_STORE).kill()


def kill_heads_raylet(cluster: Cluster, host: Host) -> None:
    faults.program(cluster.hosts["head"], RAYLET).kill()


def cut_link(cluster: Cluster, host: Host) -> None:
    host.cut()
    time.sleep(CUT_S)
    host.heal()


def lose_one_way(cluster: Cluster, host: Host) -> None:
    """What the node sends to the head is lost; what the head sends arrives."""
    host.cable.lose(cluster.hosts["head"].address)
    time.sleep(CUT_S)
    host.cable.find(cluster.hosts["head"].address)


def stop_node(cluster: Cluster, host: Host) -> None:
    host.send(signal.SIGSTOP)
    time.sleep(CUT_S)
    host.send(signal.SIGCONT)


def restart_database(cluster: Cluster, host: Host) -> None:
    if cluster.postgres:
        with cluster.hosts["head"].cable.entered():
            cluster.postgres.restart()


Fault = Callable[[Cluster, Host], None]
FAULTS: dict[Fault, float] = {  #: each with how long its outage lasts by itself
    kill_agent: 0.0,
    kill_raylet: 0.0,
    kill_node: 0.0,
    kill_head: 0.0,
    kill_control_store: 0.0,
    kill_heads_raylet: 0.0,
    cut_link: CUT_S,
    lose_one_way: CUT_S,
    stop_node: CUT_S,
    restart_database: 0.0,
}


@pytest.fixture(params=[running_cluster, cluster_on_sqlite])
def stream(request: pytest.FixtureRequest) -> Iterator[Stream]:
    """Tasks that run on three nodes, with either database."""
    with request.param() as cluster:
        began = time.monotonic()
        cluster.start_head("head")
        cluster.bring_up(*NODES)
        yield Stream(cluster, time.monotonic() - began)


def p(share: float, values: list[float]) -> float:
    """Return a percentile: the smallest value that so many are not above."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_nothing_stands_still_for_long_under_a_fault_every_few_seconds(stream: Stream) -> None:
    seed = int(os.environ.get("CHAOS_SEED", random.randrange(1 << 32)))
    chance, cluster = random.Random(seed), stream.cluster
    print(f"\nCHAOS_SEED={seed}", flush=True)
    began_s, times = uptime_s(), list[float]()
    stream.until_everywhere(began_s)
    until_s = uptime_s() + DENSE_S
    with ThreadPoolExecutor() as outages:  # some last longer than the pause until the next one
        while uptime_s() < until_s:
            times.append(uptime_s())
            outages.submit(chance.choice(list(FAULTS)), cluster, cluster.hosts[chance.choice(NODES)])
            while uptime_s() < times[-1] + FAULT_EVERY_S:
                revive(cluster)
                with suppress(HaloError):  # the database is away, too
                    stream.go_on()
                time.sleep(0.2)
    stream.until_everywhere(uptime_s())
    lines = [line.at_s for line in begins(stream.works)]
    stands = sorted(after - before for before, after in pairwise(lines))
    waits = [next(line for line in lines if line > at_s + DISPATCHED_S) - at_s for at_s in times]
    print(f"{len(times)} faults, {len(lines)} tasks; the longest standstills: {[f'{s:.1f}' for s in stands[-3:]]} s")
    print(f"the next task began after {p(0.5, waits):.1f} s (p50), {p(0.99, waits):.1f} s (p99)")
    stream.end()
    assert stands[-1] < LONGEST_STANDSTILL_S


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_after_a_single_fault_the_next_task_begins_soon(stream: Stream) -> None:
    chance = random.Random(int(os.environ.get("CHAOS_SEED", "1")))
    anywhere, hit = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    stream.until_everywhere(uptime_s())
    for fault in [fault for _ in range(ROUNDS) for fault in FAULTS]:
        host = stream.cluster.hosts[chance.choice(NODES)]
        at_s = uptime_s()
        fault(stream.cluster, host)
        revive(stream.cluster)
        first = stream.until_everywhere(at_s + DISPATCHED_S)
        anywhere[fault.__name__].append(min(first.values()) - at_s)
        hit[fault.__name__].append(first[host.name] - at_s - FAULTS[fault])
        stream.until_everywhere(uptime_s())
    most_s = max(MOST_S, STARTS * stream.start_s)
    print(f"\nhead and nodes were up after {stream.start_s:.1f} s")
    print(f"{'fault':20}{'n':>4}  anywhere p50, p99; on the node beyond the outage p50, p99")
    for name in [*anywhere, "all"]:
        names = anywhere if name == "all" else [name]
        values, on_node = ([value for each in names for value in by_fault[each]] for by_fault in (anywhere, hit))
        figures = (p(0.5, values), p(0.99, values), p(0.5, on_node), p(0.99, on_node))
        print(f"{name:20}{len(values):4}" + "".join(f"{figure:8.1f}" for figure in figures))
    stream.end()
    for by_fault in (anywhere, hit):
        assert {name: p(0.99, values) for name, values in by_fault.items() if p(0.99, values) > most_s} == {}
