"""Heads that change, nodes that are lost, cancels and retries, while the clock steps back and forth by hours.

CHAOS_SEED says which ones. The clock is injected into the store and into the heads, which run no process.
"""

import os
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from db.connection.engine import Database
from db.reads import audit, reports
from db.store import Store
from jobs.errors import NothingToDo
from jobs.state import ENDED, Failure, FailureKind, TaskState
from jobs.task import TaskResult
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.head import Head
from tests.in_memory import NODE, InMemoryExecutor, InMemoryResolver
from tests.integration.heads import settle
from tests.stored_jobs import NOON, NUMBERS, TOOLCHAIN, submit
from workers.artifacts import ArtifactStore

STEPS = int(os.environ.get("CHAOS_CLOCK_STEPS", "1500"))
LONGEST_S = 100.0  #: of an attempt, by its node's clock
LOST = (FailureKind.NODE_LOST, FailureKind.LEASE_LOST, FailureKind.OUT_OF_DISK)


class SteppingWorld:
    """Heads over one database, one after another, by a clock that is no clock."""

    def __init__(self, store: Callable[[Callable[[], datetime]], Store], folder: Path, chance: random.Random) -> None:
        self.now, self.chance = NOON, chance
        self.store = store(self.tell)
        self._artifacts = ArtifactStore(folder / "artifacts")
        (folder / "model.mlir").write_text("module {}")
        self._mlir = self._artifacts.put(folder / "model.mlir", "mlir")
        self.jobs: list[str] = []
        self.executor = InMemoryExecutor(NODE)
        self.begin()

    def tell(self) -> datetime:
        """Return the time, a moment later each time."""
        self.now += timedelta(milliseconds=1)
        return self.now

    def begin(self) -> None:
        """Let another head lead; what ran goes on or is lost."""
        cache = OutputCache(self.store, self._artifacts, TOOLCHAIN)
        running = self.executor.attempts
        self.executor = InMemoryExecutor(NODE)
        self.executor.keeps_running = self.chance.random() < 0.5
        if self.executor.keeps_running:
            self.executor.attempts |= running
        self.head = Head(self.store, self.executor, cache, InMemoryResolver(), now=self.tell)

    def submit(self) -> None:
        """Submit a job of two stages."""
        self.jobs.append(submit(self.store, stages=["export", "compile"], reuse_measurements=True))

    def step_clock(self) -> None:
        """Set the clock back or forth by up to two hours."""
        self.now += timedelta(seconds=self.chance.uniform(-7200, 7200))

    def end(self) -> None:
        """End an attempt: it succeeds, fails, or is lost."""
        if not self.executor.attempts:
            return
        attempt = self.chance.choice(list(self.executor.attempts.values()))
        kind = self.chance.choice((None, None, FailureKind.TOOL_FAILED, *LOST))
        files = (self._mlir,) if attempt.stage == "export" and kind is None else ()
        failure = Failure(kind, "chance") if kind else None
        duration_s = None if kind in LOST else self.chance.uniform(0, LONGEST_S)
        numbers = () if kind else NUMBERS
        self.executor.deliver(TaskResult(attempt.id, attempt.epoch, failure, files, numbers, duration_s=duration_s))

    def change_head(self) -> None:
        """The head is killed, and another one leads."""
        self.begin()

    def cancel(self) -> None:
        """Cancel a job; what runs of it ends."""
        with suppress(NothingToDo):
            self.store.request_cancel(self.chance.choice(self.jobs))
        self.head.step()
        for name in self.executor.cancelled:
            if attempt := self.executor.attempts.get(name):
                self.executor.end(attempt, Failure(FailureKind.CANCELLED, "cancelled"))

    def retry(self) -> None:
        """Retry a job."""
        with suppress(NothingToDo):
            self.store.retry(self.chance.choice(self.jobs))

    def finish(self) -> None:
        """Let all work come to an end."""
        for _ in range(20 * len(self.jobs)):
            settle(self.head)
            if not self.executor.attempts:
                return
            for attempt in list(self.executor.attempts.values()):
                files = (self._mlir,) if attempt.stage == "export" else ()
                self.executor.deliver(TaskResult(attempt.id, attempt.epoch, None, files, NUMBERS, duration_s=1.0))


ACTIONS = {
    SteppingWorld.submit: 3,
    SteppingWorld.step_clock: 6,
    SteppingWorld.end: 10,
    SteppingWorld.change_head: 1,
    SteppingWorld.cancel: 1,
    SteppingWorld.retry: 2,
}


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_no_step_of_the_clock_loses_or_doubles_anything(database: Database, tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED", random.randrange(1 << 32)))
    print(f"\nCHAOS_SEED={seed}", flush=True)
    chance = random.Random(seed)
    world = SteppingWorld(lambda clock: Store(database, clock), tmp_path, chance)
    world.submit()
    for _ in range(STEPS):
        (action,) = chance.choices(list(ACTIONS), list(ACTIONS.values()))
        action(world)
        world.head.step()
    world.finish()
    assert list(audit.violations(database)) == []
    tasks = [task for job in world.jobs for task in reports.tasks(database, job)]
    assert {task.state for task in tasks} <= ENDED
    for task in tasks:
        attempts = reports.attempts(database, task.id)
        assert [attempt.epoch for attempt in attempts] == list(range(1, len(attempts) + 1))
        assert all(0 <= (attempt.duration_s or 0) <= LONGEST_S for attempt in attempts)
        succeeded = [attempt for attempt in attempts if attempt.outcome == "succeeded"]
        assert len(succeeded) == (task.state is TaskState.SUCCEEDED), task.id
    print(f"{STEPS} steps, {len(tasks)} tasks")
