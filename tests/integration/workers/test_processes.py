"""Commands under a supervisor: what they print, what is measured of them, and that nothing of them stays."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from jobs.task import Command
from tests.integration.attempts import EVEN_MORE_S, TREE_SIZE, interpreter, until
from tests.integration.supervised_runs import ATTEMPT, Tree, ended, run, tree
from workers.processes.attempt_processes import FORK_SERVER_PROGRAM, kill_attempt
from workers.processes.client import EndReason, SupervisedRun

__all__ = ["tree"]

MIB = 1 << 20

LEAVES = """
import os, subprocess, time
subprocess.Popen({argv!r})
while not os.path.exists("ready") or os.stat("ready").st_size < {size}:
    time.sleep(0.005)
"""

#: Prints how many other processes carry argv[1].
COUNTS = """
import os, sys
from contextlib import suppress
count = 0
for name in os.listdir("/proc"):
    if name.isdecimal() and name != str(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/cmdline", "rb") as file:
            count += sys.argv[1].encode() in file.read().split(b"\\0")
print(count)
"""

ALLOCATE = "import os; data = bytearray(os.urandom(1)) * ({mib} << 20)"


def test_the_output_of_each_command_follows_its_title_in_the_log(tmp_path: Path) -> None:
    result = run(tmp_path, Command(("/bin/echo", "one word")), Command(("/bin/sh", "-c", "echo two >&2")))
    assert result.reason is EndReason.DONE
    assert (tmp_path / "log").read_text() == "$ /bin/echo 'one word'\none word\n$ /bin/sh -c 'echo two >&2'\ntwo\n"


def test_a_run_says_where_in_the_log_each_commands_output_lies(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of an earlier day\n")
    result = run(tmp_path, Command(("/bin/echo", "one")), Command(("/bin/echo", "two")))
    log = (tmp_path / "log").read_text()
    assert [log[command.log_start : command.log_end] for command in result.commands] == ["one\n", "two\n"]


def test_a_log_can_be_read_while_its_command_runs(tmp_path: Path) -> None:
    waits = "import os, time\nos.write(1, b'first')\nwhile not os.path.exists('go'): time.sleep(0.005)"
    with SupervisedRun([interpreter(waits)], tmp_path, tmp_path / "log", EVEN_MORE_S, ATTEMPT) as supervised_run:
        until(lambda: (tmp_path / "log").read_text().endswith("first"), "the output is in the log")
        (tmp_path / "go").touch()
        assert ended(supervised_run).reason is EndReason.DONE


def test_commands_after_one_that_failed_do_not_run(tmp_path: Path) -> None:
    result = run(tmp_path, interpreter("raise SystemExit(3)"), Command(("/usr/bin/touch", "second")))
    assert (result.reason, [command.process.exit_code for command in result.commands]) == (EndReason.FAILED, [3])
    assert not (tmp_path / "second").exists()


def test_a_command_that_a_signal_ended_has_its_number_as_exit_code(tmp_path: Path) -> None:
    result = run(tmp_path, interpreter("import os; os.kill(os.getpid(), 11)"))
    assert result.commands[0].process.exit_code == -signal.SIGSEGV


def test_a_command_that_is_not_there_says_so_in_the_log(tmp_path: Path) -> None:
    result = run(tmp_path, Command(("/no/such/tool",)))
    assert (result.reason, result.commands[0].process.exit_code) == (EndReason.FAILED, 127)
    assert "error: /no/such/tool can't be started: No such file or directory" in (tmp_path / "log").read_text()


def test_a_command_gets_its_own_environment_and_the_attempts_name_only(tmp_path: Path) -> None:
    run(tmp_path, Command(("/usr/bin/env",), {"ONE": "1"}))
    assert (tmp_path / "log").read_text().splitlines()[1:] == ["ONE=1", f"HALOCTL_ATTEMPT={ATTEMPT}"]


def test_a_command_finds_pipes_and_input_as_it_would_in_a_terminal(tmp_path: Path) -> None:
    result = run(tmp_path, Command(("/bin/sh", "-c", "/usr/bin/yes | /usr/bin/head -1; /bin/cat")))
    assert result.reason is EndReason.DONE
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
    result = run(tmp_path, interpreter(code))
    assert 96 * MIB < result.commands[0].process.peak_rss_bytes < 200 * MIB


def test_a_command_that_signals_its_own_group_does_not_hit_the_supervisor(tmp_path: Path) -> None:
    result = run(tmp_path, interpreter("import os; os.killpg(0, 15)"))
    assert (result.reason, result.commands[0].process.exit_code) == (EndReason.FAILED, -signal.SIGTERM)


def test_wall_time_is_that_of_the_command(tmp_path: Path) -> None:
    began = time.monotonic()
    result = run(tmp_path, *(interpreter("import time; time.sleep(0.2)") for _ in range(2)))
    took_s = [command.process.wall_s for command in result.commands]
    assert min(took_s) >= 0.2
    assert sum(took_s) <= time.monotonic() - began


def test_a_cancelled_run_leaves_no_process(tree: Tree) -> None:
    with tree.start() as supervised_run:
        supervised_run.cancel()
        assert ended(supervised_run).reason is EndReason.CANCELLED
        assert tree.is_gone()


def test_a_run_that_takes_too_long_leaves_no_process(tree: Tree) -> None:
    with tree.start(timeout_s=4.0) as supervised_run:
        result = ended(supervised_run)
        assert result.reason is EndReason.TIMED_OUT
        assert result.commands[0].process.exit_code == -signal.SIGTERM
        assert tree.is_gone()


def test_what_a_command_leaves_behind_is_gone_before_the_next_starts(tree: Tree) -> None:
    leaves, counts = LEAVES.format(argv=list(tree.command.argv), size=TREE_SIZE), COUNTS
    result = run(tree.folder, interpreter(leaves), interpreter(counts, tree.marker))
    assert result.reason is EndReason.DONE
    assert (tree.folder / "log").read_text().splitlines()[-1] == "0"


def test_a_command_may_tidy_up_before_it_is_killed(tmp_path: Path) -> None:
    tidies = "import os, sys, time, signal\nsignal.signal(15, lambda *_: sys.exit(os.write(1, b'tidied')))\n"
    tidies += "os.write(1, b'up ')\ntime.sleep(600)"
    with SupervisedRun([interpreter(tidies)], tmp_path, tmp_path / "log", EVEN_MORE_S, ATTEMPT) as supervised_run:
        until(lambda: (tmp_path / "log").read_text().endswith("up "), "it is up")
        supervised_run.cancel()
        ended(supervised_run)
    assert (tmp_path / "log").read_text().endswith("up tidied")


def test_a_sweep_ends_one_attempts_processes_and_no_other(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def start(attempt: str) -> subprocess.Popen[bytes]:
            waits = "import time; time.sleep(600)"
            command = [sys.executable, "-c", waits, FORK_SERVER_PROGRAM]  # no other test takes it for a leftover
            process = stack.enter_context(subprocess.Popen(command, env={"HALOCTL_ATTEMPT": attempt}))
            stack.callback(process.kill)
            until(lambda: Path(f"/proc/{process.pid}/environ").read_bytes(), "the kernel has set it up")
            return process

        other_process, process = start(f"{ATTEMPT}1"), start(ATTEMPT)
        assert kill_attempt(ATTEMPT) == 1
        assert (process.wait(), other_process.poll()) == (-signal.SIGKILL, None)


def test_a_log_that_cannot_be_written_ends_the_run_with_its_errno(tmp_path: Path) -> None:
    with SupervisedRun([Command(("/bin/echo",))], tmp_path, Path("/dev/full"), EVEN_MORE_S, ATTEMPT) as supervised_run:
        result = ended(supervised_run)
    assert (result.reason, os.strerror(result.errno)) == (EndReason.UNABLE, "No space left on device")
