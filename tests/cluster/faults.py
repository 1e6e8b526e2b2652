"""Faults of a cluster's processes, which are found by program name, and the invariants that hold after them."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from db.reads import audit, reports
from jobs.state import JobState
from jobs.task import Resources
from tests.acceptance.haloctl import DEADLINE_S, Running, until
from tests.cluster.conftest import Cluster, how_it_ended
from tests.cluster.hosts import Host, until_equal
from tests.cluster.work import Work
from tests.command_lines import command_line, command_text

DEVICES = 8  #: of each node
WHOLE_NODE = Resources(cpus=0, memory_bytes=0, devices=DEVICES, device_kind="cpu")
HALF_NODE = replace(WHOLE_NODE, devices=DEVICES // 2)
GANG = replace(HALF_NODE, nodes=2)
ONE_DEVICE = replace(WHOLE_NODE, devices=1)
AGENT = "ray::Agent"
CONTROL_STORE, RAYLET = "gcs_server", "raylet"
LAST_WORDS = 1000


def program(host: Host, name: str) -> psutil.Process:
    """Return a host's process by the name of its program, once it is the only one: a process that was just forked still
    has its parent's name."""
    processes: list[psutil.Process] = []

    def is_one() -> bool:
        processes[:] = programs(host, name)
        return len(processes) == 1

    until(is_one, lambda: f"one {name} on {host.name}, but {host.describe()}")
    return processes[0]


def programs(host: Host, *names: str) -> list[psutil.Process]:
    """Return a host's processes that run one of these programs."""
    return [process for process in host.processes() if _program(process) in names]


def _program(process: psutil.Process) -> str:
    return Path(next(iter(command_line(process)), "")).name


def host_of(cluster: Cluster, work: Work) -> Host:
    """Where the one task of some work runs."""
    (host,) = hosts_of(cluster, work)
    return host


def hosts_of(cluster: Cluster, work: Work) -> list[Host]:
    """Wherever some work runs."""
    return [host for host in cluster.hosts.values() if host.find(str(work.folder))]


def stage_process(cluster: Cluster, work: Work) -> psutil.Process:
    """The process that the one task of some work has started."""
    (process, *_) = host_of(cluster, work).find(str(work.folder))
    parent = process.parent()
    assert parent is not None
    return parent if str(work.folder) in command_line(parent) else process


def above(cluster: Cluster, work: Work) -> tuple[psutil.Process, psutil.Process, psutil.Process]:
    """The supervisor, the fork server and the agent of the one task of some work."""
    supervisor, fork_server, agent, *_ = stage_process(cluster, work).parents()
    assert AGENT in command_text(agent)
    return supervisor, fork_server, agent


def kill_head(cluster: Cluster) -> None:
    """Kill the head's own process; its Ray and all agents live on."""
    head = cluster.daemons["head"]
    head.process.kill()
    head.end()


def kill_node(cluster: Cluster, host: Host) -> None:
    """Kill all processes of a node, as a power cut does, including those that are being forked."""
    while host.processes():
        host.kill()
    cluster.daemons[host.name].end()


def wipe(cluster: Cluster) -> None:
    """Kill the head and its Ray, and wipe Ray's state."""
    kill_head(cluster)
    head = cluster.hosts["head"]
    processes = programs(head, CONTROL_STORE, RAYLET)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, DEADLINE_S)  # or they would write once more
    shutil.rmtree(head.data / "ray" / "state", ignore_errors=True)  # nothing yet, where one was wiped just before


def working_again_s(cluster: Cluster, start: Callable[[], Running]) -> float:
    """Start a head, and return how many seconds later it has done a task that had been queued meanwhile."""
    probe = cluster.submit_work(1)
    probe.open()
    began = time.monotonic()
    start()
    until(lambda: cluster.state(probe.job) == JobState.SUCCEEDED, "a new task has been done")
    return time.monotonic() - began


def until_over(cluster: Cluster, *works: Work) -> None:
    """What must hold after all: each task has come to an end, no process is left, and the rows tell of nothing that
    can't be."""
    for work in works:
        until_ended(cluster, work)
        until_gone(cluster, work)
    with cluster.database() as database:
        assert list(audit.violations(database)) == []


def until_running(cluster: Cluster, work: Work, count: int) -> None:
    """Wait until this many processes of some work have begun."""
    until(
        lambda: work.running() >= count,
        lambda: f"{count} run, but {describe_attempts(cluster, work)}; {last_words(cluster)}",
    )


def until_ended(cluster: Cluster, work: Work) -> None:
    """Wait until each task has come to an end."""
    until(
        lambda: cluster.state(work.job) in ENDS,
        lambda: f"{work.job} has ended, but {describe_attempts(cluster, work)}; {last_words(cluster)}",
    )


def ended_as(cluster: Cluster, work: Work) -> dict[tuple[str, ...], int]:
    """Wait until a job has succeeded; returns how many of its tasks had each sequence of attempt outcomes."""
    until_ended(cluster, work)
    return cluster.attempts(work.job)


def until_gone(cluster: Cluster, work: Work) -> None:
    """Wait until no process of some work is left on any host."""
    until_equal(lambda: [host.name for host in hosts_of(cluster, work)], [])


ENDS = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


def nodes_of(cluster: Cluster, work: Work) -> list[str]:
    """Where the attempts of the one task of some work were, in their order."""
    with cluster.database() as database:
        (task,) = reports.tasks(database, work.job)
        return [attempt.node for attempt in reports.attempts(database, task.id)]


def ends(cluster: Cluster, work: Work) -> list[str]:
    """How the attempts of the one task of some work ended, in their order; `None` of one that has not."""
    with cluster.database() as database:
        (task,) = reports.tasks(database, work.job)
        return [how_it_ended(attempt) for attempt in reports.attempts(database, task.id)]


def describe_attempts(cluster: Cluster, work: Work) -> str:
    """Describe the tasks and attempts of some work, for messages."""
    with cluster.database() as database:
        return "; ".join(
            f"{task.id} {task.state} ({task.waits_for}): "
            + ", ".join(f"{how_it_ended(attempt)} on {attempt.node}" for attempt in reports.attempts(database, task.id))
            for task in reports.tasks(database, work.job)
        )


def last_words(cluster: Cluster) -> str:
    """Return the last lines of the head's stderr, for messages."""
    head = cluster.daemons["head"]
    code = head.process.poll()
    return f"the head {'runs' if code is None else f'has ended with {code}'} and said: {head.err[-LAST_WORDS:]}"
