"""Launches the attempts of started tasks: stores them first, then has the executor run them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from db.schema.ids import task_of
from db.store import UNSTORABLE, NewAttempt
from jobs.errors import Unreachable
from jobs.exporters import commands_of
from jobs.state import Failure, FailureKind
from jobs.task import Attempt
from orchestrator.leader.backoff import TaskBackoff
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.held_attempts import HeldAttempts
from orchestrator.leader.isolation import failures_of_each
from orchestrator.scheduler.decision import Start
from workers import daemon_log
from workers.attempts.attempt_log import log_start

logger = daemon_log.logger(__name__)


@dataclass
class Launcher:
    """Launches attempts for one head."""

    attempts: HeldAttempts
    cache: OutputCache
    backoff: TaskBackoff

    def launch(self, starts: Sequence[Start], fresh: Collection[str], term: int) -> bool:
        """Launch all attempts at once; return whether a task changed its state.

        Tasks that an earlier one's outputs serve are cached instead; for the `fresh` ones in the queue that was tried.
        """
        self.cache.compute_digests([start.task for start in starts])
        cached = self.cache.apply([start.task for start in starts if start.task.id not in fresh])
        remaining = [start for start in starts if start.task.id not in cached and self.cache.has_digest(start.task)]
        return bool(cached) | (bool(remaining) and self._store_and_dispatch(remaining, term))

    def _store_and_dispatch(self, starts: Sequence[Start], term: int) -> bool:
        held, cache = self.attempts, self.cache
        lost = cache.missing_inputs(start.task for start in starts)
        held.executor.ensure_ready()
        new_attempts, failures = self._make_attempts(starts, term)
        ids = {new.attempt.id for new in new_attempts}
        held.started |= ids
        stored = self._store(new_attempts, failures)
        held.started -= ids - stored
        if failures:
            held.store.fail(failures)
        launched = {new.attempt.id: new.attempt for new in new_attempts if new.attempt.id in stored}
        without_inputs = {id_: lost[task_of(id_)] for id_ in launched if task_of(id_) in lost}
        if without_inputs:
            held.fail_without_inputs(without_inputs, launched)
            cache.clear()
        self._dispatch({id_: attempt for id_, attempt in launched.items() if id_ not in without_inputs})
        return bool(stored or failures)

    def _make_attempts(self, starts: Sequence[Start], term: int) -> tuple[list[NewAttempt], dict[str, Failure]]:
        """Return the attempts, and the failures of the tasks for which making one raises."""
        cache, attempts = self.cache, list[NewAttempt]()
        cache.read_model_files(start.task for start in starts)

        def make(start: Start) -> None:
            toolchain, digest = cache.toolchain_of(start.task), cache.digest_of(start.task)
            attempts.append(NewAttempt(new_attempt(start, cache), toolchain, digest, term))

        return attempts, {start.task.id: failure for start, failure in failures_of_each(starts, make)}

    def _store(self, new_attempts: Sequence[NewAttempt], failures: dict[str, Failure]) -> set[str]:
        """Store attempts, all at once if that is possible; add the failures of the tasks for which it is not."""
        store, stored = self.attempts.store, set[str]()
        try:
            return store.start(new_attempts)
        except UNSTORABLE:
            each = failures_of_each(new_attempts, lambda new: stored.update(store.start([new])))
            failures |= {task_of(new.attempt.id): failure for new, failure in each}
            return stored

    def _dispatch(self, attempts: Mapping[str, Attempt]) -> None:
        """Have the executor run attempts; requeue the tasks of those that it can't."""
        if not attempts:
            return
        executor = self.attempts.executor
        self.attempts.add_dispatched({id_: attempt.places for id_, attempt in attempts.items()})
        refused: dict[str, str] = {}
        try:
            failed = self._start(list(attempts.values()), refused)
        except Unreachable as error:
            in_flight = executor.in_flight()
            self._requeue({id_: str(error) for id_ in attempts if id_ not in in_flight}, attempts)
            raise
        for id_, attempt in attempts.items():
            if id_ not in failed and id_ not in refused:
                log_start(logger, attempt)
        self.attempts.fail_undispatched(failed, attempts)
        self._requeue(refused, {id_: attempt for id_, attempt in attempts.items() if id_ not in failed})

    def _start(self, attempts: Sequence[Attempt], refused: dict[str, str]) -> dict[str, Failure]:
        """Have the executor start attempts, all at once if that is possible; return those for which it raises."""
        executor = self.attempts.executor
        try:
            refused |= executor.start(attempts)
            return {}
        except Unreachable:
            raise
        except Exception:
            in_flight = executor.in_flight()
            remaining = [attempt for attempt in attempts if attempt.id not in in_flight]
            each = failures_of_each(remaining, lambda attempt: refused.update(executor.start([attempt])))
            return {attempt.id: failure for attempt, failure in each}

    def _requeue(self, reasons: Mapping[str, str], attempts: Mapping[str, Attempt]) -> None:
        for id_ in attempts:
            self.backoff.note(task_of(id_), reasons.get(id_))
        failures = {id_: Failure(FailureKind.REQUEUED, reason) for id_, reason in reasons.items()}
        self.attempts.fail_undispatched(failures, attempts)


def new_attempt(start: Start, cache: OutputCache) -> Attempt:
    """Return the next attempt of a task whose digest the cache has computed, with the planned files of its model."""
    task, toolchain = start.task, cache.toolchain_of(start.task)
    return Attempt(
        id=f"{task.id}-{task.attempts + 1}",
        epoch=task.epoch + 1,
        stage=task.stage,
        settings=task.settings,
        commands=tuple(commands_of(task.stage, task.settings, toolchain)),
        inputs=cache.inputs_of(task),
        places=start.places,
        timeout_s=task.timeout_s,
        cpus=task.resources.cpus,
        toolchain=toolchain.lock,
        model_files=cache.model_files_of(task),
    )
