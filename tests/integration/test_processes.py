"""Commands under a guard: what they print, what is measured of them, and that nothing of them stays."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from jobs.task import Command
from tests.integration.attempts import DEADLINE_S, EVEN_MORE_S, TREE, TREE_SIZE, interpreter, is_up, living, until
from workers import processes
from workers.processes import End, Ended, Guarded, sweep

MIB = 1 << 20
ATTEMPT = "0123abcd-01-1"
ROOT = Path(__file__).parents[2]

LEASE_S = 1.5

#: Stands in for an agent that can be killed or stopped: reads what to run, runs it under a guard, says how it ended.
AGENT = """
import json, sys, threading, time
from pathlib import Path
from jobs.task import Command
from workers.processes import Guarded, Lease
argv, cwd, log, attempt, lease_s = json.loads(sys.stdin.readline())
lease = Lease(lease_s)
def renew():
    while True:
        lease.renew()
        time.sleep(0.02)
threading.Thread(target=renew, daemon=True).start()
print(Guarded([Command(tuple(argv))], Path(cwd), Path(log), 600, attempt, lease).wait().how)
"""

LEAVES = """
import os, subprocess, time
subprocess.Popen({argv!r})
while not os.path.exists("ready") or os.stat("ready").st_size < {size}:
    time.sleep(0.005)
"""

#: Prints how many other processes carry argv[1].
COUNTS = """
import os, sys
found = 0
for name in os.listdir("/proc"):
    if name.isdecimal() and name != str(os.getpid()):
        with open(f"/proc/{name}/cmdline", "rb") as file:
            found += sys.argv[1].encode() in file.read().split(b"\\0")
print(found)
"""

#: Throws away its environment, and with it the attempt's name.
NAMELESS = """
import os, sys, time
if "HALOCTL_ATTEMPT" in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {})
open(sys.argv[2], "w").close()
time.sleep(600)
"""

ALLOCATE = "import os; data = bytearray(os.urandom(1)) * ({mib} << 20)"


def run(tmp_path: Path, *commands: Command, timeout_s: float = EVEN_MORE_S) -> Ended:
    with Guarded(commands, tmp_path, tmp_path / "log", timeout_s, ATTEMPT) as guarded:
        return ended(guarded)


class Tree:
    """Processes in several sessions, running under a guard."""

    def __init__(self, folder: Path) -> None:
        self.marker, self.folder, self.ready = f"marker-{uuid4().hex}", folder, folder / "ready"
        self.attempt = f"attempt-{uuid4().hex}"
        self.command = interpreter(TREE, self.marker, str(self.ready))

    def start(self, timeout_s: float = EVEN_MORE_S) -> Guarded:
        guarded = Guarded([self.command], self.folder, self.folder / "log", timeout_s, self.attempt)
        until(lambda: is_up(self.ready), "the tree is up")
        assert len(living(self.marker)) == TREE_SIZE
        return guarded

    def is_gone(self) -> bool:
        return not living(self.marker)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path)
    yield tree
    for process in living(tree.marker):
        process.kill()


def ended(guarded: Guarded) -> Ended:
    """What a run came to; a run that does not end is killed and fails the test."""
    found: list[Ended] = []
    waiting = threading.Thread(target=lambda: found.append(guarded.wait()), daemon=True)
    waiting.start()
    waiting.join(DEADLINE_S)
    if not found:
        for process in (keeper(), *keeper().children(recursive=True)):
            process.kill()
        pytest.fail("the guard does not come to an end")
    return found[0]


def keeper() -> psutil.Process:
    return psutil.Process(processes.keeper.pid)


def only_guard() -> psutil.Process:
    (guard,) = keeper().children()
    return guard


def kill_at_once(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.suspend()
    for process in processes:
        process.kill()


def test_the_output_of_each_command_follows_its_title_in_the_log(tmp_path: Path) -> None:
    found = run(tmp_path, Command(("/bin/echo", "one word")), Command(("/bin/sh", "-c", "echo two >&2")))
    assert found.how is End.DONE
    assert (tmp_path / "log").read_text() == "$ /bin/echo 'one word'\none word\n$ /bin/sh -c 'echo two >&2'\ntwo\n"


def test_a_run_says_where_in_the_log_each_commands_output_lies(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of an earlier day\n")
    found = run(tmp_path, Command(("/bin/echo", "one")), Command(("/bin/echo", "two")))
    log = (tmp_path / "log").read_text()
    assert [log[ran.log_start : ran.log_end] for ran in found.ran] == ["one\n", "two\n"]


def test_a_log_can_be_read_while_its_command_runs(tmp_path: Path) -> None:
    waits = "import os, time\nos.write(1, b'first')\nwhile not os.path.exists('go'): time.sleep(0.005)"
    with Guarded([interpreter(waits)], tmp_path, tmp_path / "log", EVEN_MORE_S, ATTEMPT) as guarded:
        until(lambda: (tmp_path / "log").read_text().endswith("first"), "the output is in the log")
        (tmp_path / "go").touch()
        assert ended(guarded).how is End.DONE


def test_commands_after_one_that_failed_do_not_run(tmp_path: Path) -> None:
    found = run(tmp_path, interpreter("raise SystemExit(3)"), Command(("/usr/bin/touch", "second")))
    assert (found.how, [ran.process.exit_code for ran in found.ran]) == (End.FAILED, [3])
    assert not (tmp_path / "second").exists()


def test_a_command_that_a_signal_ended_has_its_number_as_exit_code(tmp_path: Path) -> None:
    found = run(tmp_path, interpreter("import os; os.kill(os.getpid(), 11)"))
    assert found.ran[0].process.exit_code == -signal.SIGSEGV


def test_a_command_that_is_not_there_says_so_in_the_log(tmp_path: Path) -> None:
    found = run(tmp_path, Command(("/no/such/tool",)))
    assert (found.how, found.ran[0].process.exit_code) == (End.FAILED, 127)
    assert "error: /no/such/tool can't be started: No such file or directory" in (tmp_path / "log").read_text()


def test_a_command_gets_its_own_environment_and_the_attempts_name_only(tmp_path: Path) -> None:
    run(tmp_path, Command(("/usr/bin/env",), {"ONE": "1"}))
    assert (tmp_path / "log").read_text().splitlines()[1:] == ["ONE=1", f"HALOCTL_ATTEMPT={ATTEMPT}"]


def test_a_command_finds_pipes_and_input_as_it_would_in_a_terminal(tmp_path: Path) -> None:
    found = run(tmp_path, Command(("/bin/sh", "-c", "/usr/bin/yes | /usr/bin/head -1; /bin/cat")))
    assert found.how is End.DONE
    assert (tmp_path / "log").read_text().splitlines()[1:] == ["y"]


@pytest.mark.parametrize(
    "start_child",
    [
        "import subprocess; subprocess.run([sys.executable, '-c', CODE])",
        "import subprocess; subprocess.Popen([sys.executable, '-c', CODE + '; open(\"done\", \"w\")'])\n"
        "import os, time\nwhile not os.path.exists('done'): time.sleep(0.005)",
    ],
    ids=["one that is waited for", "an orphan"],
)
def test_peak_memory_counts_what_a_command_starts(tmp_path: Path, start_child: str) -> None:
    code = f"import sys; CODE = {ALLOCATE.format(mib=96)!r}; {start_child}"
    found = run(tmp_path, interpreter(code))
    assert 96 * MIB < found.ran[0].process.peak_rss_bytes < 200 * MIB


def test_a_command_that_signals_its_own_group_does_not_hit_the_guard(tmp_path: Path) -> None:
    found = run(tmp_path, interpreter("import os; os.killpg(0, 15)"))
    assert (found.how, found.ran[0].process.exit_code) == (End.FAILED, -signal.SIGTERM)


def test_wall_time_is_that_of_the_command(tmp_path: Path) -> None:
    found = run(tmp_path, interpreter("import time; time.sleep(0.2)"))
    assert 0.2 <= found.ran[0].process.wall_s < 2


def test_a_cancelled_run_leaves_no_process(tree: Tree) -> None:
    with tree.start() as guarded:
        guarded.cancel()
        assert ended(guarded).how is End.CANCELLED
        assert tree.is_gone()


def test_a_run_that_takes_too_long_leaves_no_process(tree: Tree) -> None:
    with tree.start(timeout_s=1.5) as guarded:
        found = ended(guarded)
        assert found.how is End.TIMED_OUT
        assert found.ran[0].process.exit_code == -signal.SIGTERM
        assert tree.is_gone()


def test_a_killed_guard_leaves_no_process(tree: Tree) -> None:
    with tree.start() as guarded:
        only_guard().kill()
        assert ended(guarded).how is End.LOST
        assert tree.is_gone()


def test_what_a_killed_guard_leaves_is_ended_and_nothing_else(tree: Tree, tmp_path: Path) -> None:
    waits = "import os, time\nos.write(1, b'up')\nwhile not os.path.exists('go'): time.sleep(0.005)"
    with Guarded([interpreter(waits)], tmp_path, tmp_path / "other", EVEN_MORE_S, ATTEMPT) as other:
        until(lambda: (tmp_path / "other").read_text().endswith("up"), "the other one is up")
        (others_guard,) = keeper().children()
        with tree.start() as guarded:
            (guard,) = set(keeper().children()) - {others_guard}
            guard.kill()
            assert ended(guarded).how is End.LOST
            assert tree.is_gone()
        (tmp_path / "go").touch()
        assert ended(other).how is End.DONE


def test_a_killed_keeper_leaves_no_process_and_the_next_run_gets_another_one(tree: Tree, tmp_path: Path) -> None:
    with tree.start() as guarded:
        keeper().kill()
        assert ended(guarded).how is End.LOST
        assert tree.is_gone()
    assert run(tmp_path, Command(("/bin/true",))).how is End.DONE


def test_runs_leave_no_open_file(tmp_path: Path) -> None:
    def open_files() -> tuple[int, int]:
        return keeper().num_fds(), psutil.Process().num_fds()

    run(tmp_path, Command(("/bin/true",)))
    before = open_files()
    for _ in range(3):
        run(tmp_path, Command(("/bin/true",)))
    assert open_files() == before


def test_when_guard_and_keeper_are_killed_at_once_what_carries_the_attempts_name_is_swept(tree: Tree) -> None:
    with tree.start() as guarded:
        both = [only_guard(), keeper()]
        stubborn = [process for process in living(tree.marker) if not process.environ()]
        kill_at_once(both)
        assert ended(guarded).how is End.LOST
        assert living(tree.marker) == stubborn  # it hid its name, and nobody was left who knew it


def test_when_guard_and_keeper_are_killed_at_once_the_kernel_ends_the_command_itself(tmp_path: Path) -> None:
    marker, ready = f"marker-{uuid4().hex}", tmp_path / "ready"
    nameless = interpreter(NAMELESS, marker, str(ready))
    with Guarded([nameless], tmp_path, tmp_path / "log", EVEN_MORE_S, ATTEMPT) as guarded:
        until(ready.exists, "the command is up")
        kill_at_once([only_guard(), keeper()])
        assert ended(guarded).how is End.LOST
    until(lambda: not living(marker), "the command is gone")


@contextmanager
def agent_that_runs(tree: Tree, lease_s: float) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """An agent that the test may kill or stop, and its guards; the tree is up."""
    request = [tree.command.argv, str(tree.folder), str(tree.folder / "log"), tree.attempt, lease_s]
    argv, pipe = [sys.executable, "-c", AGENT], subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as agent:
        assert agent.stdin
        agent.stdin.write(json.dumps(request) + "\n")
        agent.stdin.flush()
        try:
            until(lambda: is_up(tree.ready), "the tree is up")
            yield agent, psutil.Process(agent.pid).children(recursive=True)
        finally:
            agent.kill()


def test_a_killed_agent_leaves_no_process(tree: Tree) -> None:
    with agent_that_runs(tree, EVEN_MORE_S) as (agent, guards):
        agent.kill()
        until(tree.is_gone, "the tree is gone")
        until(lambda: not any(guard.is_running() for guard in guards), "the guard is gone")


def test_an_agent_that_is_stopped_for_longer_than_its_lease_leaves_no_process(tree: Tree) -> None:
    with agent_that_runs(tree, LEASE_S) as (agent, _):
        time.sleep(1.5 * LEASE_S)
        assert len(living(tree.marker)) == TREE_SIZE  # for it was renewed
        agent.send_signal(signal.SIGSTOP)
        until(tree.is_gone, "the tree is gone")
        agent.send_signal(signal.SIGCONT)
        assert agent.communicate(timeout=DEADLINE_S)[0] == "expired\n"


def test_what_a_command_leaves_behind_is_gone_before_the_next_starts(tree: Tree) -> None:
    leaves, counts = LEAVES.format(argv=list(tree.command.argv), size=TREE_SIZE), COUNTS
    found = run(tree.folder, interpreter(leaves), interpreter(counts, tree.marker))
    assert found.how is End.DONE
    assert (tree.folder / "log").read_text().splitlines()[-1] == "0"


def test_a_command_may_tidy_up_before_it_is_killed(tmp_path: Path) -> None:
    tidies = "import os, sys, time, signal\nsignal.signal(15, lambda *_: sys.exit(os.write(1, b'tidied')))\n"
    tidies += "os.write(1, b'up ')\ntime.sleep(600)"
    with Guarded([interpreter(tidies)], tmp_path, tmp_path / "log", EVEN_MORE_S, ATTEMPT) as guarded:
        until(lambda: (tmp_path / "log").read_text().endswith("up "), "it is up")
        guarded.cancel()
        ended(guarded)
    assert (tmp_path / "log").read_text().endswith("up tidied")


def test_a_sweep_ends_one_attempts_processes_and_no_other(tmp_path: Path) -> None:
    def start(attempt: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["/bin/sleep", "600"], env={"HALOCTL_ATTEMPT": attempt})

    with start(f"{ATTEMPT}1") as other, start(ATTEMPT) as one:
        assert sweep(ATTEMPT) == 1
        assert (one.wait(), other.poll()) == (-signal.SIGKILL, None)
        other.kill()


def test_a_log_that_cannot_be_written_ends_the_run_with_its_errno(tmp_path: Path) -> None:
    with Guarded([Command(("/bin/echo",))], tmp_path, Path("/dev/full"), EVEN_MORE_S, ATTEMPT) as guarded:
        found = ended(guarded)
    assert (found.how, os.strerror(found.errno)) == (End.UNABLE, "No space left on device")


def test_the_keeper_imports_nothing_that_would_make_its_forks_slow() -> None:
    code = "import sys; sys.path.append('.'); import workers.keeper; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "workers.guard" in loaded.stdout.split()
    assert not {"typing", "json", "signal", "re", "subprocess", "enum"} & set(loaded.stdout.split())
