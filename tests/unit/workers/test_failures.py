"""What is said of a program that died, out of all that it printed."""

import pytest

from jobs.state import FailureKind
from jobs.task import Process
from workers.failures import of_process

DIED = """loading
Traceback (most recent call last):
  File "engine.py", line 3, in start
    raise RuntimeError(
RuntimeError: the engine's core failed
see above for the root cause
[W1122 memory.cpp:68] Warning: freed late
resource_tracker.py:254: UserWarning: 1 leaked object
  warnings.warn('resource_tracker: There appear to be %d '
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (DIED, "RuntimeError: the engine's core failed"),
        (f"{DIED}During handling another came\n{DIED.replace('RuntimeError', 'vllm.EngineDeadError')}",
         "vllm.EngineDeadError: the engine's core failed"),
        ("Traceback (most recent call last):\n  File\nAssertionError\n", "AssertionError"),
        ("Traceback (most recent call last):\n  File\nodd.Ending: too late\n", "odd.Ending: too late"),
        ("all is well\nerror: unknown flag\nbye\n", "error: unknown flag"),
        ("all is well\nbye\n", "bye"),
    ],
)  # fmt: skip
def test_an_exception_is_told_and_not_what_was_printed_after_it(log: str, said: str) -> None:
    failure = of_process(Process(("python",), 1, 1.0, 0), "python", log)
    assert (failure.kind, failure.message) == (FailureKind.TOOL_FAILED, f"python: {said}")


def test_a_known_fault_of_the_compiler_is_told_with_what_can_be_changed() -> None:
    log = "inputs/export/model.mlir:1:1: error: failed to solve for timepoint coverage\n"
    failure = of_process(Process(("iree-compile",), 1, 1.0, 1), "iree-compile", log)
    assert failure.message.endswith("with programs for several devices: give another tp, or other batch sizes)")
