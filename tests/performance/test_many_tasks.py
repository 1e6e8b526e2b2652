"""Many no-op tasks through the same head and agent: their memory must stay level. Nothing is asserted."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.performance.noop_stage import known_here_and_below
from tests.performance.test_throughput import follow_job, kind_of, leading

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

TASKS = int(os.environ.get("HALOCTL_BENCH_MANY_TASKS", "50000"))
JOB_TASKS = 1000
AT_ONCE = 16
LINES = 10


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HALOCTL_CPU_DEVICES", str(AT_ONCE))
    with known_here_and_below():
        yield


def test_memory_over_many_tasks(devices: None, database_url: str, tmp_path: Path) -> None:
    jobs = TASKS // JOB_TASKS
    with leading(database_url, tmp_path) as (context, loop):
        for number in range(1, jobs + 1):
            rate = follow_job(context, loop, JOB_TASKS)
            if number == 1 or number % max(jobs // LINES, 1) == 0:
                head, agent = psutil.Process(), _agent()
                memory = f"head {_rss_mib(head)} MiB, agent {_rss_mib(agent)} MiB, {agent.num_fds()} open files"
                print(f"\n{kind_of(database_url)}, {number * JOB_TASKS} tasks: {rate:.0f} tasks/s; {memory}", end="")


def _agent() -> psutil.Process:
    """Return the process of the agent, which Ray names after its class."""
    (agent,) = (
        child for child in psutil.Process().children(recursive=True) if "ray::Agent" in " ".join(child.cmdline())
    )
    return agent


def _rss_mib(process: psutil.Process) -> int:
    return process.memory_info().rss >> 20
