"""Work that ends when a test says so: each task is a real process that reports its start and waits for a gate."""

from dataclasses import dataclass, replace
from pathlib import Path

from db.connection.engine import Database
from db.store import Store, Submission
from jobs.plan import Plan, plan
from jobs.task import Resources
from tests.acceptance.haloctl import until
from tests.cluster import gated_ranks
from tests.performance.noop_stage import NOTHING, known_here_and_below, plan_of
from tests.stored_jobs import TINY, spec_of

#: `python -c WAIT FOLDER`: leaves a file with its pid among those that run, and ends with the code that `gate` says.
WAIT = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "running" / str(os.getpid())).touch()
while not (folder / "gate").exists():
    time.sleep(0.05)
sys.exit(int((folder / "gate").read_text() or 0))
"""
#: The same with a child in a session of its own that does not want to end.
STUBBORN = f"""
import os, signal, time
if not os.fork():
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
{WAIT}
"""
TIMEOUT_S = 600.0


#: `sh -c PULSE JOURNAL`: writes uptime and working folder, which names node and attempt, when it begins and ends.
PULSE = """
note() { read up idle < /proc/uptime; echo "$up $1 $PWD" >> "$0"; }
note begin; sleep 1; note end
"""
JOURNAL = "journal"


@dataclass(frozen=True)
class Work:
    """A job of equal tasks that run until the gate is open."""

    job: str
    folder: Path

    def running(self) -> int:
        """Return how many processes have begun, including those of abandoned attempts."""
        return len(self.pids())

    def pids(self) -> list[int]:
        """Return the ids of those processes."""
        return [int(path.name) for path in (self.folder / "running").iterdir()]

    def until_running(self, count: int) -> None:
        """Wait until this many processes have begun."""
        until(lambda: self.running() >= count, lambda: f"{count} processes run, but {self.running()}")

    def open(self, exit_code: int = 0) -> None:
        """Let all processes end; later ones end at once."""
        part = self.folder / "gate.part"
        part.write_text(f"{exit_code}")
        part.rename(self.folder / "gate")


def submitted(database: Database, folder: Path, count: int, needs: Resources = NOTHING, program: str = WAIT) -> Work:
    """Submit such a job; each task has one logical CPU device, unless it `needs` something else."""
    with known_here_and_below():
        return _submitted(database, folder, plan_of(count, "python", "-c", program, str(folder), needs=needs))


def submitted_pulses(database: Database, folder: Path, count: int) -> Work:
    """Submit tasks that take a second and keep a journal (`tests.cluster.pulses`)."""
    with known_here_and_below():
        return _submitted(database, folder, plan_of(count, "sh", "-c", PULSE, str(folder / JOURNAL)))


def submitted_ranks(database: Database, folder: Path) -> Work:
    """Submit a benchmark of the torch engine, a rank on each of two nodes; they compute until the gate is open."""
    spec = spec_of(
        variants={"engine": "torch", "tp": 2, "nodes": 2},
        stages=["benchmark"],
        workload={"new_tokens": 4},
        benchmark={"repetitions": 2, "exclusive": False},
    )
    made = plan(spec, TINY)
    gated = [replace(task, settings={**task.settings, "gate": str(folder)}) for task in made.tasks]
    with gated_ranks.known_here():
        return _submitted(database, folder, replace(made, tasks=tuple(gated)))


def _submitted(database: Database, folder: Path, made: Plan) -> Work:
    (folder / "running").mkdir(parents=True)
    job = Store(database).submit(
        Submission(plan=made, name="work", spec={}, model=TINY, submitted_by="test", timeout_s=TIMEOUT_S, reuse=False)
    )
    return Work(job, folder)
