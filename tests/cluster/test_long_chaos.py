"""Hundreds of kills of the head, and as many of everything else, at random moments while jobs come, run and are
cancelled; `make chaos` runs it.

CHAOS_ROUNDS says how many, and CHAOS_SEED which ones: a run prints its seed first.
"""

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from db.reads import reports, results
from jobs.state import TaskState
from tests.cluster import faults
from tests.cluster.conftest import Cluster, how_it_ended, running_cluster
from tests.cluster.faults import DEVICES, GANG, HALF_NODE, ONE_DEVICE, WHOLE_NODE, until_over
from tests.cluster.hosts import Host
from tests.cluster.pulses import check_journal
from tests.cluster.work import STUBBORN, WAIT, Work
from tests.command_lines import command_line

NODES = ("n1", "n2", "n3")
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "200"))
JOBS = 6  #: at a time
GANG_SHARE, PULSE_SHARE = 0.1, 0.25  #: of jobs
LONGEST_TROUBLE_S = 25.0  #: well above a lease
LONGEST_OUTAGE_S = 20.0
SETTLED_S = 300.0
NEEDS = (WHOLE_NODE, HALF_NODE, GANG, ONE_DEVICE)

#: What may come of an attempt here; the kernel kills as we do when memory runs out, and ranks fail with a killed peer.
KINDS = frozenset({"succeeded", "cancelled", "node_lost", "lease_lost", "requeued", "out_of_memory", "tool_failed"})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with three nodes of eight devices."""
    with running_cluster() as cluster:
        cluster.start_head("head")
        cluster.bring_up(*NODES, HALOCTL_CPU_DEVICES=f"{DEVICES}")
        yield cluster


@dataclass
class Chaos:
    """The faults that were injected into a cluster, and those that are still to be undone."""

    cluster: Cluster
    chance: random.Random
    works: list[Work] = field(default_factory=list)
    waiting: list[Work] = field(default_factory=list)  #: those whose gates are closed
    gangs: list[Work] = field(default_factory=list)  #: of ranks of the torch engine
    pulses: list[Work] = field(default_factory=list)  #: those with journals
    done: Counter[str] = field(default_factory=Counter)
    undo: dict[str, tuple[float, Callable[[], object]]] = field(default_factory=dict)  #: by host: when and how

    def go_on(self) -> None:
        """Submit and end jobs, and restart what was killed."""
        for name, (at_s, undo) in list(self.undo.items()):
            if at_s < time.monotonic():
                del self.undo[name]
                undo()
        self.revive()
        while len(self.waiting) < JOBS:
            self.waiting.append(self._submit())
            self.works.append(self.waiting[-1])
        opened = self.waiting.pop(self.chance.randrange(len(self.waiting)))
        opened.open()

    def _submit(self) -> Work:
        """Submit tasks that wait for the test, tasks with a journal, or a gang of the torch engine: one at a time."""
        if not any(work in self.waiting for work in self.gangs) and self.chance.random() < GANG_SHARE:
            self.gangs.append(self.cluster.submit_ranks())
            return self.gangs[-1]
        if self.chance.random() < PULSE_SHARE:
            self.pulses.append(self.cluster.submit_pulses(self.chance.randint(1, DEVICES)))
            return self.pulses[-1]
        program, count = self.chance.choice((STUBBORN, WAIT)), self.chance.randint(1, 3)
        return self.cluster.submit_work(count, self.chance.choice(NEEDS), program)

    def revive(self) -> None:
        """Start daemons that have ended, as systemd does."""
        for name, daemon in self.cluster.daemons.items():
            if daemon.process.poll() is not None:
                head = self.cluster.hosts["head"]
                if name == "head":
                    self.cluster.daemons[name] = head.start("head", "--host", head.address)
                else:
                    self.cluster.start_node(name, waits=False)

    def end(self) -> None:
        """Undo all, and let all work end."""
        for _, undo in self.undo.values():
            undo()
        for work in self.waiting:
            work.open()

    def head(self) -> None:
        """Kill the head's process."""
        self.cluster.daemons["head"].process.kill()

    def one(self) -> None:
        """Kill one process of any host: each kind of program is as likely as any other."""
        kinds = defaultdict(list)
        for name in ("head", *NODES):
            for process in self.cluster.hosts[name].processes():
                if line := command_line(process):
                    kinds[" ".join((Path(line[0]).name, *line[1:]))[:40]].append(process)
        killable = sorted(kind for kind in kinds if not kind.startswith("postgres"))
        kind = self.chance.choice(killable)
        self.done[kind.partition(" --")[0].strip()] += 1
        with suppress(psutil.Error):
            self.chance.choice(kinds[kind]).kill()

    def node(self) -> None:
        """Kill all that a node has."""
        self._node().kill()

    def cut(self) -> None:
        """Cut a node off for a while."""
        host = self._node()
        if host.name not in self.undo:
            host.cut()
            self._undo(host, host.heal)

    def one_way(self) -> None:
        """Lose what a node sends to the head, or what the head sends to it, for a while."""
        host, head = self._node(), self.cluster.hosts["head"]
        sender, receiver = self.chance.choice(((host, head), (head, host)))
        if host.name not in self.undo:
            sender.cable.lose(receiver.address)
            self._undo(host, lambda: sender.cable.find(receiver.address))

    def ranks(self) -> None:
        """Kill a process of a gang of the torch engine."""
        hosts = [self.cluster.hosts[name] for name in NODES]
        if ranks := [rank for gang in self.gangs for host in hosts for rank in host.find(str(gang.folder))]:
            with suppress(psutil.Error):
                self.chance.choice(ranks).kill()

    def stop(self) -> None:
        """Stop all that a node has for a while."""
        host = self._node()
        if host.name not in self.undo:
            host.send(signal.SIGSTOP)
            self._undo(host, lambda: host.send(signal.SIGCONT))

    def database(self) -> None:
        """Have the database go away for a while."""
        assert self.cluster.postgres
        with self.cluster.hosts["head"].cable.entered(), self.cluster.postgres.stopped():
            time.sleep(self.chance.uniform(0, LONGEST_OUTAGE_S))

    def restart(self) -> None:
        """End all sessions with the database."""
        assert self.cluster.postgres
        with self.cluster.hosts["head"].cable.entered():
            self.cluster.postgres.restart()

    def wipe(self) -> None:
        """Have Ray forget everything."""
        faults.wipe(self.cluster)

    def cancel(self) -> None:
        """Cancel a job; what ends it is the next head."""
        self.cluster.hosts["client"].start("cancel", self.chance.choice(self.waiting).job)

    def _node(self) -> Host:
        return self.cluster.hosts[self.chance.choice(NODES)]

    def _undo(self, host: Host, undo: Callable[[], object]) -> None:
        self.undo[host.name] = (time.monotonic() + self.chance.uniform(0, LONGEST_TROUBLE_S), undo)


FAULTS: dict[Callable[[Chaos], None], int] = {
    Chaos.one: 20,
    Chaos.node: 3,
    Chaos.cut: 3,
    Chaos.one_way: 3,
    Chaos.ranks: 3,
    Chaos.stop: 3,
    Chaos.cancel: 3,
    Chaos.restart: 2,
    Chaos.database: 1,
    Chaos.wipe: 1,
}


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_hundreds_of_kills_lose_nothing_and_leave_nothing(cluster: Cluster) -> None:
    seed = int(os.environ.get("CHAOS_SEED", random.randrange(1 << 32)))
    print(f"\nCHAOS_SEED={seed} CHAOS_ROUNDS={ROUNDS}", flush=True)
    chaos = Chaos(cluster, random.Random(seed))
    began = time.monotonic()
    faults.kill_head(cluster)
    cluster.start_head("head")
    starts_s = time.monotonic() - began
    for _ in range(ROUNDS):
        chaos.go_on()
        time.sleep(chaos.chance.uniform(0, 2 * starts_s))
        chaos.head()
        (fault,) = chaos.chance.choices(list(FAULTS), list(FAULTS.values()))
        chaos.done[fault.__name__] += 1
        fault(chaos)
    chaos.end()
    deadline = time.monotonic() + SETTLED_S
    while not all(cluster.state(work.job) in faults.ENDS for work in chaos.works) and time.monotonic() < deadline:
        chaos.revive()
        time.sleep(1)
    until_over(cluster, *chaos.works)
    assert cluster.hosts["client"].answer("db", "check").startswith("no invariant is violated")
    ended = Counter(kind for work in chaos.works for kind in kinds(cluster, work))
    print(f"{ROUNDS} heads killed, and beside them: {dict(chaos.done)}")
    print(f"{len(chaos.works)} jobs in {time.monotonic() - began:.0f} s, whose attempts ended: {dict(ended)}")
    for work in chaos.pulses:
        check_journal(cluster, work)
    for gang in chaos.gangs:
        check_gang(cluster, gang)
    assert ended.keys() <= KINDS


def check_gang(cluster: Cluster, gang: Work) -> None:
    """A gang that succeeded was measured once, by all ranks of its last attempt; another one has no result."""
    with cluster.database() as database:
        (task,) = reports.tasks(database, gang.job)
        measured = results.results(database, job=gang.job, metric="ttft_ms")
    assert [row.attempt for row in measured] == [task.attempt] * (task.state is TaskState.SUCCEEDED)
    assert all([rank["rank"] for rank in row.context["ranks"]] == [0, 1] for row in measured)


def kinds(cluster: Cluster, work: Work) -> Iterator[str]:
    """How the attempts of some work ended."""
    with cluster.database() as database:
        for task in reports.tasks(database, work.job):
            yield from map(how_it_ended, reports.attempts(database, task.id))
