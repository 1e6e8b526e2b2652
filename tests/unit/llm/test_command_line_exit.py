"""Programs whose work is done end at once, whatever their runtimes do at the exit of a process."""

import subprocess
import sys

import pytest

#: What a runtime does whose threads still run when its destructors are called.
ABORTS_AT_EXIT = """
import atexit, os
from workers.llm.command_line import run
atexit.register(os.abort)
run(lambda: print("done"){options})
"""


@pytest.mark.parametrize(("options", "exit_code"), [("", 0), (", has_children=True", -6)])
def test_what_happens_at_exit_does_not_fail_a_program_that_has_done_its_work(options: str, exit_code: int) -> None:
    program = ABORTS_AT_EXIT.format(options=options)
    done = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (exit_code, "done\n")
