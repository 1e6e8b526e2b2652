"""Launches the attempts of started tasks: stores them first, then has the executor run them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from db.schema.ids import task_of
from db.store import NewAttempt
from jobs.errors import Unreachable
from jobs.exporters import commands_of
from jobs.state import Failure, FailureKind
from jobs.task import Attempt
from orchestrator.leader.backoff import TaskBackoff
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.held_attempts import HeldAttempts
from orchestrator.scheduler.decision import Start


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
        remaining = [start for start in starts if start.task.id not in cached]
        return bool(cached) | (bool(remaining) and self._store_and_dispatch(remaining, term))

    def _store_and_dispatch(self, starts: Sequence[Start], term: int) -> bool:
        held, cache = self.attempts, self.cache
        lost = cache.missing_inputs(start.task for start in starts)
        held.executor.ensure_ready()
        model_files = cache.model_files(start.task for start in starts)
        attempts = {start.task.id: new_attempt(start, cache, model_files.get(start.task.id, {})) for start in starts}
        ids = {attempt.id for attempt in attempts.values()}
        held.started |= ids
        tasks = [start.task for start in starts]
        stored = held.store.start(
            [NewAttempt(attempts[task.id], cache.toolchain_of(task), cache.digest_of(task), term) for task in tasks]
        )
        held.started -= ids - stored
        launched = {attempt.id: attempt for attempt in attempts.values() if attempt.id in stored}
        without_inputs = {id_: lost[task_of(id_)] for id_ in launched if task_of(id_) in lost}
        if without_inputs:
            held.fail_without_inputs(without_inputs, launched)
            cache.clear()
        self._dispatch({id_: attempt for id_, attempt in launched.items() if id_ not in without_inputs})
        return bool(stored)

    def _dispatch(self, attempts: Mapping[str, Attempt]) -> None:
        """Have the executor run attempts; requeue the tasks of those that it can't."""
        if not attempts:
            return
        executor = self.attempts.executor
        self.attempts.add_dispatched({id_: attempt.places for id_, attempt in attempts.items()})
        try:
            refused = executor.start(list(attempts.values()))
        except Unreachable as error:
            in_flight = executor.in_flight()
            self._requeue({id_: str(error) for id_ in attempts if id_ not in in_flight}, attempts)
            raise
        self._requeue(refused, attempts)

    def _requeue(self, reasons: Mapping[str, str], attempts: Mapping[str, Attempt]) -> None:
        for id_ in attempts:
            self.backoff.note(task_of(id_), reasons.get(id_))
        failures = {id_: Failure(FailureKind.REQUEUED, reason) for id_, reason in reasons.items()}
        self.attempts.fail_undispatched(failures, attempts)


def new_attempt(start: Start, cache: OutputCache, model_files: Mapping[str, str]) -> Attempt:
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
        model_files=model_files,
    )
