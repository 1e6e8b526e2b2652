"""Runs under a supervisor, and the fork server that made it: what tests of both start, find and kill."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from jobs.task import Command
from tests.integration.attempts import DEADLINE_S, EVEN_MORE_S, TREE, TREE_SIZE, interpreter, is_up, living, until
from workers.processes import client
from workers.processes.client import RunResult, SupervisedRun

ATTEMPT = f"{uuid4().hex[:8]}-01-1"  #: nobody's beside these tests: whatever has its name is swept away with it


def run(tmp_path: Path, *commands: Command, timeout_s: float = EVEN_MORE_S) -> RunResult:
    with SupervisedRun(commands, tmp_path, tmp_path / "log", timeout_s, ATTEMPT) as supervised_run:
        return ended(supervised_run)


class Tree:
    """Processes in several sessions, running under a supervisor."""

    def __init__(self, folder: Path) -> None:
        self.marker, self.folder, self.ready = f"marker-{uuid4().hex}", folder, folder / "ready"
        self.attempt = f"attempt-{uuid4().hex}"
        self.command = interpreter(TREE, self.marker, str(self.ready))

    def start(self, timeout_s: float = EVEN_MORE_S) -> SupervisedRun:
        supervised_run = SupervisedRun([self.command], self.folder, self.folder / "log", timeout_s, self.attempt)
        self.until_up()
        return supervised_run

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


def ended(supervised_run: SupervisedRun) -> RunResult:
    """Return the result of a run; a run that does not end is killed and fails the test."""
    results: list[RunResult] = []
    waiting = threading.Thread(target=lambda: results.append(supervised_run.wait()), daemon=True)
    waiting.start()
    waiting.join(DEADLINE_S)
    if not results:
        for process in (fork_server_process(), *fork_server_process().children(recursive=True)):
            process.kill()
        pytest.fail("the supervisor does not come to an end")
    return results[0]


def fork_server_process() -> psutil.Process:
    return psutil.Process(client.fork_server.pid)


def working_supervisors() -> list[psutil.Process]:
    """Return the supervisors that run something; others are idle."""
    supervisors = []
    for supervisor in fork_server_process().children():
        with suppress(psutil.Error):  # one that has just ended
            if supervisor.children():
                supervisors.append(supervisor)
    return supervisors


def only_supervisor() -> psutil.Process:
    """Return the one supervisor that runs something."""
    (supervisor,) = working_supervisors()
    return supervisor


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, reaped or not: in a container nothing may reap it."""
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def kill_at_once(client: list[psutil.Process]) -> None:
    for process in client:
        process.suspend()
    for process in client:
        process.kill()
