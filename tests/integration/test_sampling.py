"""Looks at a machine from beside what is measured on it: real guards, real processes, the kernel's own books."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jobs.toolchains import Toolchain
from tests.integration.attempts import FINITE_INVOCATION, attempt, python, until
from workers import process_trees
from workers.artifacts import ArtifactStore
from workers.processes import Cancellation
from workers.run_task import run
from workers.sampling import MOST_COST, Sampling

#: Computes for argv[1] seconds in a process of a process, which ends, and for as long in itself; then it waits for the
#: file argv[2].
COMPUTE = """
import os, subprocess, sys, time
BURN = "import sys, time\\nwhile time.process_time() < float(sys.argv[1]): pass"
subprocess.run([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])",
                "-c", BURN, sys.argv[1]])
begun = time.process_time()
while time.process_time() < begun + float(sys.argv[1]):
    pass
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
"""


def known_of(sampling: Sampling) -> list[float]:
    """What the measured processes had computed, sample by sample."""
    return [one.own_cpu_s for one in sampling.samples if one.own_cpu_s is not None]


def test_what_measured_processes_compute_is_told_apart_while_they_run(tmp_path: Path) -> None:
    """Of the tree alone: what this process computes meanwhile is another's."""
    given = attempt(python(f"{COMPUTE}\n{FINITE_INVOCATION}", "0.3", str(tmp_path / "go")))
    store = ArtifactStore(tmp_path / "artifacts")
    with Sampling(given, every_s=0.02) as sampling, ThreadPoolExecutor(1) as threads:
        running = threads.submit(run, given, tmp_path, store, Toolchain("default", {}), Cancellation())
        until(lambda: any(one > 0.5 for one in known_of(sampling)), "it is told what it has computed")
        (tmp_path / "go").touch()
        result = running.result()
        begun_s = time.process_time()
        while time.process_time() < begun_s + 0.3:
            pass
    assert result.failure is None
    known = known_of(sampling)
    assert known == sorted(known)
    (process,) = result.processes
    assert process.cpu_s > 0.5
    assert known[-1] - known[0] < process.cpu_s + 0.1
    assert sampling.cost_s <= MOST_COST * (sampling.samples[-1].at_s - sampling.samples[0].at_s) + 0.1


def test_a_process_that_is_gone_has_no_tree() -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        child.wait()
    assert process_trees.cpu_s(child.pid) is None
    assert list(process_trees.children(child.pid)) == []
    assert process_trees.guard_of("nobody's") is None
