"""Runs under a guard, and the keeper that made it: what tests of both start, find and kill."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from jobs.task import Command
from tests.integration.attempts import DEADLINE_S, EVEN_MORE_S, TREE, TREE_SIZE, interpreter, is_up, living, until
from workers import processes
from workers.processes import Ended, Guarded

ATTEMPT = f"{uuid4().hex[:8]}-01-1"  #: nobody's beside these tests: whatever has its name is swept away with it


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
        self.until_up()
        return guarded

    def until_up(self) -> None:
        """Wait until all of it runs, and what forked it has ended."""
        until(lambda: is_up(self.ready), "the tree is up")
        until(lambda: len(living(self.marker)) == TREE_SIZE, "nothing else is there")

    def is_gone(self) -> bool:
        return not living(self.marker)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path)
    yield tree
    for process in living(tree.marker):
        with suppress(psutil.Error):
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


def working_guards() -> list[psutil.Process]:
    """Those that run something; others wait for what comes."""
    found = []
    for guard in keeper().children():
        with suppress(psutil.Error):  # one that has just ended
            if guard.children():
                found.append(guard)
    return found


def only_guard() -> psutil.Process:
    """The one that runs something."""
    (guard,) = working_guards()
    return guard


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more, reaped or not: in a container there may be nobody who does that."""
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def kill_at_once(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.suspend()
    for process in processes:
        process.kill()
