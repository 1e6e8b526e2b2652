"""Runs under a guard, and the keeper that made it: what tests of both start, find and kill."""

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from jobs.task import Command
from tests.integration.attempts import DEADLINE_S, EVEN_MORE_S, TREE, TREE_SIZE, interpreter, is_up, living, until
from workers import processes
from workers.processes import Ended, Guarded

ATTEMPT = "0123abcd-01-1"


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
    """The one that runs something; others wait for what comes."""
    (guard,) = [one for one in keeper().children() if one.children()]
    return guard


def kill_at_once(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.suspend()
    for process in processes:
        process.kill()
