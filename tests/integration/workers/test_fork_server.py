"""Agent, fork server and supervisor: whichever of them is killed or stopped, nothing of a run stays."""

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psutil

from jobs.task import Command
from tests.integration.attempts import DEADLINE_S, EVEN_MORE_S, TREE_SIZE, interpreter, living, until
from tests.integration.supervised_runs import (
    ATTEMPT,
    Tree,
    ended,
    fork_server_process,
    has_ended,
    kill_at_once,
    only_supervisor,
    run,
    tree,
    working_supervisors,
)
from workers.processes.client import EndReason, SupervisedRun

__all__ = ["tree"]

ROOT = Path(__file__).parents[3]
LEASE_S = 3.0

#: Stands in for an agent that can be killed or stopped: reads what to run, runs it supervised, says how it ended.
AGENT = """
import json, sys, threading, time
from pathlib import Path
from jobs.task import Command
from workers.processes.client import SupervisedRun
from workers.processes.lease import Lease
argv, cwd, log, attempt, lease_s = json.loads(sys.stdin.readline())
lease = Lease(lease_s)
def renew():
    while True:
        lease.renew()
        time.sleep(0.02)
threading.Thread(target=renew, daemon=True).start()
print(SupervisedRun([Command(tuple(argv))], Path(cwd), Path(log), 600, attempt, lease).wait().reason)
"""

#: Throws away its environment, and with it the attempt's name.
NAMELESS = """
import os, sys, time
if "HALOCTL_ATTEMPT" in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {})
open(sys.argv[2], "w").close()
time.sleep(600)
"""


def test_a_killed_supervisor_leaves_no_process(tree: Tree) -> None:
    with tree.start() as supervised_run:
        only_supervisor().kill()
        assert ended(supervised_run).reason is EndReason.LOST
        assert tree.is_gone()


def test_what_a_killed_supervisor_leaves_is_ended_and_nothing_else(tree: Tree, tmp_path: Path) -> None:
    waits = "import os, time\nos.write(1, b'up')\nwhile not os.path.exists('go'): time.sleep(0.005)"
    with SupervisedRun([interpreter(waits)], tmp_path, tmp_path / "other", EVEN_MORE_S, ATTEMPT) as other:
        until(lambda: (tmp_path / "other").read_text().endswith("up"), "the other one is up")
        others_supervisor = only_supervisor()
        with tree.start() as supervised_run:
            (supervisor,) = [process for process in working_supervisors() if process != others_supervisor]
            supervisor.kill()
            assert ended(supervised_run).reason is EndReason.LOST
            assert tree.is_gone()
        (tmp_path / "go").touch()
        assert ended(other).reason is EndReason.DONE


def test_a_killed_fork_server_leaves_no_process_and_the_next_run_gets_another_one(tree: Tree, tmp_path: Path) -> None:
    with tree.start() as supervised_run:
        fork_server_process().kill()
        assert ended(supervised_run).reason is EndReason.LOST
        assert tree.is_gone()
    assert run(tmp_path, Command(("/bin/true",))).reason is EndReason.DONE


def test_a_supervisor_runs_one_thing_after_another_until_it_is_killed_or_its_fork_server_is(tmp_path: Path) -> None:
    prints_its_supervisor = interpreter("import os; os.write(1, b'%d' % os.getppid())")

    def supervisor_of_a_run() -> psutil.Process:
        assert run(tmp_path, prints_its_supervisor).reason is EndReason.DONE
        return psutil.Process(int((tmp_path / "log").read_text().split()[-1]))

    first = supervisor_of_a_run()
    assert supervisor_of_a_run() == first
    first.kill()
    until(lambda: has_ended(first), "it is gone")
    second = supervisor_of_a_run()
    assert second != first
    fork_server_process().kill()
    until(lambda: has_ended(second), "it has ended")


def test_a_fork_server_that_may_open_no_more_files_loses_the_new_run_alone(tree: Tree, tmp_path: Path) -> None:
    with tree.start() as supervised_run:
        soft, hard = resource.prlimit(fork_server_process().pid, resource.RLIMIT_NOFILE)
        resource.prlimit(fork_server_process().pid, resource.RLIMIT_NOFILE, (fork_server_process().num_fds(), hard))
        assert run(tmp_path, Command(("/bin/true",))).reason is EndReason.LOST
        resource.prlimit(fork_server_process().pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert run(tmp_path, Command(("/bin/true",))).reason is EndReason.DONE
        supervised_run.cancel()
        assert ended(supervised_run).reason is EndReason.CANCELLED


def test_runs_leave_no_open_file(tmp_path: Path) -> None:
    def open_files() -> tuple[int, int]:
        return fork_server_process().num_fds(), psutil.Process().num_fds()

    def has_no_more_than(before: tuple[int, int]) -> bool:
        return all(now <= then for now, then in zip(open_files(), before, strict=True))

    run(tmp_path, Command(("/bin/true",)))
    before = open_files()
    for _ in range(3):
        run(tmp_path, Command(("/bin/true",)))
    until(lambda: has_no_more_than(before), "the fork server has closed what the last one had")


def test_when_supervisor_and_fork_server_are_killed_at_once_what_carries_the_attempts_name_is_swept(tree: Tree) -> None:
    with tree.start() as supervised_run:
        both = [only_supervisor(), fork_server_process()]
        stubborn = [process for process in living(tree.marker) if not process.environ()]
        kill_at_once(both)
        assert ended(supervised_run).reason is EndReason.LOST
        assert living(tree.marker) == stubborn  # it hid its name, and nobody was left who knew it


def test_when_supervisor_and_fork_server_are_killed_at_once_the_kernel_ends_the_command_itself(tmp_path: Path) -> None:
    marker, ready = f"marker-{uuid4().hex}", tmp_path / "ready"
    nameless = interpreter(NAMELESS, marker, str(ready))
    with SupervisedRun([nameless], tmp_path, tmp_path / "log", EVEN_MORE_S, ATTEMPT) as supervised_run:
        until(ready.exists, "the command is up")
        kill_at_once([only_supervisor(), fork_server_process()])
        assert ended(supervised_run).reason is EndReason.LOST
    until(lambda: not living(marker), "the command is gone")


@contextmanager
def agent_that_runs(tree: Tree, lease_s: float) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """An agent that the test may kill or stop, and its supervisors; the tree is up."""
    request = [tree.command.argv, str(tree.folder), str(tree.folder / "log"), tree.attempt, lease_s]
    argv, pipe = [sys.executable, "-c", AGENT], subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as agent:
        assert agent.stdin
        agent.stdin.write(json.dumps(request) + "\n")
        agent.stdin.flush()
        try:
            tree.until_up()
            yield agent, psutil.Process(agent.pid).children(recursive=True)
        finally:
            agent.kill()


def test_a_killed_agent_leaves_no_process(tree: Tree) -> None:
    with agent_that_runs(tree, EVEN_MORE_S) as (agent, supervisors):
        agent.kill()
        until(tree.is_gone, "the tree is gone")
        until(lambda: all(map(has_ended, supervisors)), "the supervisor is gone")


def test_an_agent_that_is_stopped_for_longer_than_its_lease_leaves_no_process(tree: Tree) -> None:
    with agent_that_runs(tree, LEASE_S) as (agent, _):
        time.sleep(1.2 * LEASE_S)
        assert len(living(tree.marker)) == TREE_SIZE  # for it was renewed
        agent.send_signal(signal.SIGSTOP)
        until(tree.is_gone, "the tree is gone")
        agent.send_signal(signal.SIGCONT)
        assert agent.communicate(timeout=DEADLINE_S)[0] == "expired\n"


def test_the_fork_server_imports_its_own_modules_and_little_of_the_standard_library() -> None:
    code = "import sys; sys.path.append('.'); import workers.processes.fork_server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True)
    modules = {name for name in loaded.stdout.split() if name.partition(".")[0] not in {*sys.stdlib_module_names}}
    own_modules = {f"workers.processes.{name}" for name in ("fork_server", "landlock", "proc", "supervisor")}
    assert modules - {"__main__"} == own_modules | {"workers", "workers.processes"}
    assert not {"typing", "re", "json", "subprocess", "dataclasses"} & {*loaded.stdout.split()}, "forks stay small"
