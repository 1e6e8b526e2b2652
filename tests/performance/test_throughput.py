"""The throughput of no-op tasks, each a separate process, and the latency of a start.

Compared with bare Ray and with peers that run many small tasks, in the same run; `make bench` prints it.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from db.connection.engine import open_database
from db.reads import reports
from db.store import Store, Submission
from jobs.state import JobState, TaskState
from orchestrator.context import Context
from orchestrator.follow.following import embedded, follow
from orchestrator.interrupts import Interrupts
from orchestrator.leader.loop import LeaderLoop
from orchestrator.settings import Settings
from tests.performance.noop_stage import known_here_and_below, plan_of
from tests.performance.peers import PEERS, Peer, Peers
from tests.stored_jobs import TINY

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

TASKS = int(os.environ.get("HALOCTL_BENCH_TASKS", "1000"))
ROUNDS = 3
AT_ONCE = 16
ROOT = Path(__file__).parents[2]

SAMPLES = 200
PAUSE_S = 0.05  #: between two submissions: more than one takes

#: Submits jobs of one task and tells when each was in the database.
SUBMITTER = """
import sys, time
from db.connection.engine import open_database
from db.store import Store, Submission
from tests.performance.test_throughput import submit
with open_database(sys.argv[1], create=False) as database:
    for _ in range(int(sys.argv[2])):
        print(submit(Store(database), 1, "date", "+%s.%N"), time.time(), flush=True)
        time.sleep(float(sys.argv[3]))
"""

#: Prints what `count` tasks took; argv[3] says whether each starts a process.
BARE_RAY = """
import os, subprocess, sys, time
import ray
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")

starts_process = sys.argv[3] == "process"

@ray.remote
def noop():
    if starts_process:
        subprocess.run(["true"], check=True)

count = int(sys.argv[1])
ray.get([noop.remote() for _ in range(100)])
begin = time.perf_counter()
ray.get([noop.remote() for _ in range(count)])
print(count / (time.perf_counter() - begin))
"""


def submit(store: Store, count: int, *argv: str) -> str:
    """Return a job of this many tasks that run `argv`."""
    return store.submit(
        Submission(
            plan=plan_of(count, *argv),
            name="noop",
            spec={},
            model=TINY,
            submitted_by="bench",
            timeout_s=600,
            reuse=False,
        )
    )


@contextmanager
def leading(url: str, folder: Path) -> Iterator[tuple[Context, LeaderLoop]]:
    """Lead in this process as `submit --wait` does, on a Ray that is up."""
    with open_database(url, create=False) as database:
        context = Context(Settings(folder / "data", url, None, folder / "artifacts"), database)
        loop = embedded(context)
        try:
            follow_job(context, loop, AT_ONCE)
            yield context, loop
        finally:
            loop.close()


def follow_job(context: Context, loop: LeaderLoop, count: int) -> float:
    """Submit, follow to the end; returns tasks per second."""
    begin = time.perf_counter()
    job = submit(context.store, count, "true")
    state = follow(context, loop, job, Interrupts(), lambda rows: None)
    took_s = time.perf_counter() - begin
    assert state is JobState.SUCCEEDED, reports.tasks(context.database, job)[0]
    return count / took_s


def rates(measure: Callable[[], float]) -> list[float]:
    return [measure() for _ in range(ROUNDS)]


def bare_ray(count: int, kind: str) -> float:
    argv = [sys.executable, "-c", BARE_RAY, str(count), str(AT_ONCE), kind]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[-1])


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HALOCTL_CPU_DEVICES", str(AT_ONCE))
    with known_here_and_below():
        yield


@pytest.fixture(scope="module")
def measured_rates() -> dict[str, float]:
    """The tasks per second of all measurements so far."""
    return {}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Peers:
    return Peers(tmp_path_factory.mktemp("peers"))


def tell(measured_rates: dict[str, float], name: str, measured: list[float]) -> None:
    """Print a median, and the ratios of haloctl's rates to it."""
    rate = measured_rates[name] = statistics.median(measured)
    ours = {key: value for key, value in measured_rates.items() if key.startswith("haloctl") and key != name}
    ratios = ", ".join(f"{key} {value / rate:.2f} x" for key, value in ours.items())
    print(
        f"\n{name}: {rate:.0f} tasks/s (of {', '.join(f'{rate_per_s:.0f}' for rate_per_s in measured)})  {ratios}",
        end="",
    )


def test_tasks_of_haloctl(devices: None, database_url: str, tmp_path: Path, measured_rates: dict[str, float]) -> None:
    with leading(database_url, tmp_path) as (context, loop):
        tell(measured_rates, f"haloctl on {kind_of(database_url)}", rates(lambda: follow_job(context, loop, TASKS)))


@pytest.mark.parametrize("kind", ["process", "function"])
def test_tasks_of_bare_ray(kind: str, measured_rates: dict[str, float]) -> None:
    tell(measured_rates, f"bare Ray, a {kind} for each task", rates(lambda: bare_ray(TASKS, kind)))


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_tasks_of_others(
    peer: Peer, peers: Peers, measured_rates: dict[str, float], request: pytest.FixtureRequest
) -> None:
    if peer.package in peers.missing:
        pytest.skip(f"{peer.package}: {peers.missing[peer.package]}")

    def rate() -> float:
        if not peer.needs_postgres:
            return peers.rate(peer, TASKS, AT_ONCE)
        with request.getfixturevalue("postgres").new_database("template0") as url:
            return peers.rate(peer, TASKS, AT_ONCE, url.replace("+psycopg", ""))

    tell(measured_rates, peer.name, rates(rate))


def test_from_the_insert_to_the_process(devices: None, database_url: str, tmp_path: Path) -> None:
    with leading(database_url, tmp_path) as (context, loop):
        argv = [sys.executable, "-c", SUBMITTER, database_url, str(SAMPLES), str(PAUSE_S)]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as submitter:
            while submitter.poll() is None:
                if not loop.step():
                    loop.wait(PAUSE_S)
            assert submitter.stdout
            inserted = {job: float(at) for job, at in map(str.split, submitter.stdout)}
        last = list(inserted)[-1]
        follow(context, loop, last, Interrupts(), lambda rows: None)
        tasks = [task for job in inserted for task in reports.tasks(context.database, job)]
    assert {task.state for task in tasks} == {TaskState.SUCCEEDED}
    waits_ms = sorted((started(tmp_path / "data", task.id) - inserted[task.job]) * 1e3 for task in tasks)
    p50, p99 = statistics.median(waits_ms), waits_ms[int(0.99 * len(waits_ms))]
    print(
        f"\n{kind_of(database_url)}: from the insert to the process {p50:.1f} ms (median), {p99:.1f} ms (p99)", end=""
    )


def started(data: Path, task: str) -> float:
    """When the only process of a task's only attempt said that it runs."""
    return float((data / "logs" / f"{task}-1.log").read_text().split()[-1])


def kind_of(url: str) -> str:
    return "Postgres" if url.startswith("postgresql") else "SQLite"
