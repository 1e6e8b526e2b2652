"""The cost of polling for foreign GPU processes among many processes. Nothing is asserted; `make bench` prints."""

import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from jobs.task import Device
from tests.gpu_drivers import GIB, KernelBooks
from tests.integration.attempts import make_attempt
from workers.measurement.foreign_processes import ForeignProcessMonitor

pytestmark = pytest.mark.benchmark

CARDS, OWN, OTHERS, POLLS = 8, 8, 192, 30
#: Starts argv[1] processes that live as long as itself, and tells their numbers.
PARENT = """
import subprocess, sys
waits = [sys.executable, "-IS", "-c", "import sys; sys.stdin.read()"]
children = [subprocess.Popen(waits, stdin=subprocess.PIPE) for _ in range(int(sys.argv[1]))]
print(*[child.pid for child in children], flush=True)
sys.stdin.read()
for child in children:
    child.communicate()
"""


def family(stack: ExitStack, children: int) -> tuple[int, list[int]]:
    """A process with some below it."""
    command = (sys.executable, "-IS", "-c", PARENT, str(children))
    parent = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert parent.stdout
    assert parent.stdin
    stack.callback(parent.stdin.close)
    return parent.pid, [int(pid) for pid in parent.stdout.readline().split()]


@pytest.mark.parametrize("held_bytes", [0, 8192, GIB])
@pytest.mark.parametrize("others", [0, OTHERS])
def test_what_a_poll_of_eight_gpus_costs(others: int, held_bytes: int, tmp_path: Path) -> None:
    """The kernel's files are stand-ins in a folder; each process of the attempt holds memory of a different card."""
    books = KernelBooks(tmp_path, CARDS)
    devices = tuple(Device("mi300x", card, f"0x{0xA0 + card:016x}") for card in range(CARDS))
    with ExitStack() as stack:
        (supervisor, pids), (_, foreign_pids) = family(stack, OWN), family(stack, others)
        for card in range(CARDS):
            for place, pid in enumerate(pids):
                books.give(card, pid, 100 * GIB if place == card else 0)
            for pid in foreign_pids:
                books.give(card, pid, held_bytes)
        monitor, costs = ForeignProcessMonitor(make_attempt(devices=devices), books.root), []
        for poll in range(POLLS):
            began_s = time.thread_time()
            monitor.poll(float(poll), supervisor, {})
            costs.append(time.thread_time() - began_s)
    print(
        f"\n{OWN} own processes, {others} others that hold {held_bytes}: {statistics.median(costs) * 1e3:.1f} ms a poll"
    )
