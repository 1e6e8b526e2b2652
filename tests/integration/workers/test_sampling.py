"""Looks at a machine from beside what is measured on it: real supervisors, real processes, the kernel's own books."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jobs.toolchains import Toolchain
from tests.integration.attempts import FINITE_INVOCATION, make_attempt, python, until
from workers.artifacts import ArtifactStore
from workers.attempts.run_task import run
from workers.measurement.sampling import MAX_CPU_SHARE, Sampler
from workers.processes import proc
from workers.processes.cancellation import Cancellation
from workers.processes.client import fork_server

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


def known_of(sampling: Sampler) -> list[float]:
    """What the measured processes had computed, sample by sample."""
    return [sample.own_cpu_s for sample in sampling.samples if sample.own_cpu_s is not None]


def test_what_measured_processes_compute_is_told_apart_while_they_run(tmp_path: Path) -> None:
    """Of the tree alone: what this process computes meanwhile is another's."""
    attempt = make_attempt(python(f"{COMPUTE}\n{FINITE_INVOCATION}", "0.3", str(tmp_path / "go")))
    store = ArtifactStore(tmp_path / "artifacts")
    with Sampler(attempt, interval_s=0.02) as sampling, ThreadPoolExecutor(1) as threads:
        running = threads.submit(run, attempt, tmp_path, store, Toolchain("default", {}), Cancellation())
        until(lambda: any(cpu_s > 0.5 for cpu_s in known_of(sampling)), "it is told what it has computed")
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
    assert sampling.cost_s <= MAX_CPU_SHARE * (sampling.samples[-1].at_s - sampling.samples[0].at_s) + 0.1


def test_a_process_that_is_gone_has_no_tree() -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        child.wait()
    assert proc.tree_cpu_s(child.pid) is None
    assert list(proc.children(child.pid)) == []
    assert fork_server.supervisor_of("nobody's") is None
