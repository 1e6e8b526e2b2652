"""Heads over an executor that runs nothing, stepped by hand or leading in a thread."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from db.connection.engine import Database, open_database
from db.reads import reports
from db.store import Store
from jobs.state import FailureKind, TaskState
from jobs.task import Artifact, Attempt
from orchestrator.context import Context
from orchestrator.executor import Executor
from orchestrator.interrupts import Interrupts
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.head import Head
from orchestrator.leader.loop import run_leader
from orchestrator.settings import Settings
from tests.in_memory import NODE, InMemoryExecutor, InMemoryResolver
from tests.integration.attempts import until
from tests.stored_jobs import TOOLCHAIN, submit
from workers.artifacts import ArtifactStore


@pytest.fixture
def executor() -> InMemoryExecutor:
    return InMemoryExecutor(NODE)


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def mlir(artifacts: ArtifactStore, tmp_path: Path) -> Artifact:
    (tmp_path / "model.mlir").write_text("module {}")
    return artifacts.put(tmp_path / "model.mlir", "mlir")


@pytest.fixture
def cache(store: Store, artifacts: ArtifactStore) -> OutputCache:
    return OutputCache(store, artifacts, TOOLCHAIN)


@pytest.fixture
def head(store: Store, executor: InMemoryExecutor, cache: OutputCache) -> Head:
    return Head(store, executor, cache, InMemoryResolver())


def one_export(store: Store) -> str:
    return f"{submit(store, stages=['export'])}-01"


def settle(head: Head) -> None:
    """Step until nothing happens any more."""
    for _ in range(50):
        if not head.step():
            return
    raise AssertionError("something happens in every step")


def only(executor: InMemoryExecutor) -> Attempt:
    (attempt,) = executor.attempts.values()
    return attempt


def task(store: Store, name: str) -> reports.TaskRow:
    return reports.task(store.database, name)


def state(store: Store, name: str) -> TaskState:
    return task(store, name).state


def outcomes(store: Store, name: str) -> list[tuple[str, FailureKind | None]]:
    """The attempts of a task: how each ended, and why."""
    rows = reports.attempts(store.database, name)
    return [(row.outcome or "", row.failure.kind if row.failure else None) for row in rows]


def context_of(database: Database, folder: Path) -> Context:
    """Return a context with the data folder of the test."""
    url = database.url.render_as_string(hide_password=False)
    return Context(Settings(folder / "data", url, None, folder / "artifacts"), database)


class Daemon:
    """Run `run_leader` in a thread, with a separate database connection."""

    def __init__(self, url: str, folder: Path, make_executor: Callable[[], Executor], **options: bool) -> None:
        self.interrupts, self.said = Interrupts(), list[str]()
        self._logger = logging.getLogger("orchestrator")
        self._logger.setLevel(logging.INFO)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(url, folder, make_executor, options))
        self._thread.start()

    def _hear(self, record: logging.LogRecord) -> bool:
        """Note what this leader's thread logs."""
        if record.thread == self._thread.ident:
            self.said.append(record.getMessage())
        return True

    def _run(self, url: str, folder: Path, make_executor: Callable[[], Executor], options: dict[str, Any]) -> None:
        handler = logging.NullHandler()
        handler.handle = self._hear  # type: ignore[method-assign]
        self._logger.addHandler(handler)
        try:
            with open_database(url, create=False) as database:
                context = context_of(database, folder)
                run_leader(context, lambda _: make_executor(), self.interrupts, **options)
        except BaseException as error:
            self.error = error
        finally:
            self._logger.removeHandler(handler)

    def has_said(self, words: str) -> bool:
        return any(words in line for line in self.said)

    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        """Interrupt the leader as a signal does, and wait for its end."""
        import signal

        self.interrupts.came = signal.SIGTERM
        self.interrupts.wake()
        until(self.has_ended, "the head ends")
        self._thread.join()


@contextmanager
def leading(
    url: str, folder: Path, make_executor: Callable[[], Executor], *, standby: bool = False, **options: bool
) -> Iterator[Daemon]:
    """A daemon that is ended with the context."""
    daemon = Daemon(url, folder, make_executor, standby=standby, **options)
    try:
        yield daemon
    finally:
        daemon.end()
