"""Peers that run many small tasks, each as a program that prints its rate of no-op tasks per second.

They are installed from PyPI into a separate environment in the given folder.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

INSTALL_TIMEOUT_S = 300
RUN_TIMEOUT_S = 300

#: A process for each task is what it does by itself; a file says that a task is done.
LUIGI = """
import sys, time
import luigi

class Noop(luigi.Task):
    number = luigi.IntParameter()
    def output(self):
        return luigi.LocalTarget(f"done/{self.number}")
    def run(self):
        with self.output().open("w"):
            pass

count, at_once = int(sys.argv[1]), int(sys.argv[2])
begin = time.perf_counter()
assert luigi.build([Noop(n) for n in range(count)], workers=at_once, local_scheduler=True, log_level="CRITICAL")
print(count / (time.perf_counter() - begin))
"""

#: Its workers are threads, its queue and results are in SQLite. argv[3] says whether a task starts a process.
HUEY = """
import logging, subprocess, sys, time
from huey import SqliteHuey

logging.disable(logging.CRITICAL)
huey = SqliteHuey(filename="huey.db")

@huey.task()
def noop():
    if sys.argv[3] == "process":
        subprocess.run(["true"], check=True)
    return True

count, at_once = int(sys.argv[1]), int(sys.argv[2])
consumer = huey.create_consumer(workers=at_once, periodic=False, initial_delay=0.01, max_delay=0.1)
consumer.start()
begin = time.perf_counter()
for result in [noop() for _ in range(count)]:
    assert result.get(blocking=True, backoff=1.05, max_delay=0.05)
print(count / (time.perf_counter() - begin), flush=True)
consumer.stop(graceful=True)
"""

#: A shell for each task, as it does by itself.
SNAKEFILE = """
rule all:
    input: expand("done/{number}", number=range(int(config["count"])))

rule noop:
    output: "done/{number}"
    shell: "touch {output}"
"""
SNAKEMAKE = """
import subprocess, sys, time
from pathlib import Path

Path("Snakefile").write_text(sys.argv[3])
count, at_once = int(sys.argv[1]), int(sys.argv[2])
begin = time.perf_counter()
argv = [sys.executable, "-m", "snakemake", "--cores", str(at_once), "--quiet", "all", "--config", f"count={count}"]
subprocess.run(argv, check=True, capture_output=True)
print(count / (time.perf_counter() - begin))
"""

#: Its queue is in Postgres, at argv[3]; a worker runs coroutines, each of which starts a process.
PROCRASTINATE = """
import asyncio, sys, time
import procrastinate

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=sys.argv[3]))

@app.task
async def noop():
    process = await asyncio.create_subprocess_exec("true")
    assert await process.wait() == 0

async def main(count, at_once):
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        begin = time.perf_counter()
        await noop.batch_defer_async(*[{} for _ in range(count)])
        await app.run_worker_async(wait=False, concurrency=at_once, install_signal_handlers=False)
        print(count / (time.perf_counter() - begin), flush=True)

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""

#: Its server, in a process of its own, keeps states and results in SQLite; its tasks are threads that start a process.
PREFECT = """
import os, subprocess, sys, time
os.environ |= {"PREFECT_HOME": os.getcwd(), "PREFECT_LOGGING_LEVEL": "CRITICAL", "DO_NOT_TRACK": "1"}
from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner

@task
def noop():
    subprocess.run(["true"], check=True)

count, at_once = int(sys.argv[1]), int(sys.argv[2])

@flow(task_runner=ThreadPoolTaskRunner(max_workers=at_once))
def all_of_them():
    begin = time.perf_counter()
    for future in [noop.submit() for _ in range(count)]:
        future.result()
    return count / (time.perf_counter() - begin)

print(all_of_them())
"""


@dataclass(frozen=True)
class Peer:
    """One way to run tasks with one of them."""

    name: str
    package: str
    program: str
    arguments: tuple[str, ...] = ()
    share: float = 1.0  #: of the tasks: a slow one gets fewer, so that its time is bearable
    needs_postgres: bool = False  #: its last argument is the address of a database
    requirement: str = ""  #: what is installed; empty: the package

    @property
    def installs(self) -> str:
        """What pip is given."""
        return self.requirement or self.package


PEERS = (
    Peer("luigi, a process for each task", "luigi", LUIGI, share=0.3),
    Peer("snakemake, a process for each task", "snakemake", SNAKEMAKE, (SNAKEFILE,), share=0.05),
    Peer("huey on SQLite, a process for each task", "huey", HUEY, ("process",)),
    Peer("huey on SQLite, without processes", "huey", HUEY, ("function",)),
    Peer(
        "procrastinate on Postgres, a process for each task",
        "procrastinate",
        PROCRASTINATE,
        needs_postgres=True,
        requirement="procrastinate[psycopg] psycopg[binary]",
    ),
    Peer("prefect on SQLite, a process for each task", "prefect", PREFECT, share=0.1),
)


class Peers:
    """An environment with those packages that could be installed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python = folder / "venv" / "bin" / "python"
        self._runs = 0
        self.missing: dict[str, str] = {}  #: by package, with the reason
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        for package, requirements in sorted({(peer.package, peer.installs) for peer in PEERS}):
            self._install(package, requirements.split())

    def rate(self, peer: Peer, count: int, at_once: int, *more: str) -> float:
        """Return the tasks per second of one run, in a separate folder."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        (folder / "done").mkdir(parents=True)
        wanted = max(int(count * peer.share), 1)
        argv = [str(self._python), "-c", peer.program, str(wanted), str(at_once), *peer.arguments, *more]
        ran = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
        assert ran.returncode == 0, f"{peer.name}: {ran.stderr[-2000:]}"
        return float(ran.stdout.split()[-1])

    def _install(self, package: str, requirements: list[str]) -> None:
        argv = [str(self._python), "-m", "pip", "install", "--quiet", *requirements]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.missing[package] = f"not installed within {INSTALL_TIMEOUT_S} s"
            return
        if done.returncode:
            self.missing[package] = f"pip can't install it: {done.stderr.strip().splitlines()[-1]}"
