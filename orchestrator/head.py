"""The head: reads a snapshot, lets the scheduler decide, carries the decisions out, writes what came back.

Whoever leads may be a daemon or a `submit --wait`: there is one leader at a time, and the database is the only truth.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from db.store import OpenTask, RunningAttempt, Snapshot, Store
from jobs.digest import task_digest
from jobs.errors import Conflict, HaloError, Unreachable
from jobs.stages import STAGES
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Artifact, Attempt, TaskResult
from jobs.toolchains import Toolchain
from orchestrator import scheduler
from orchestrator.executor import Executor
from orchestrator.scheduler import Action, Block, Queue, Start, Wait
from workers.artifacts import ArtifactStore

Inputs = Mapping[str, tuple[Artifact, ...]]

LOOK_AGAIN_S = 1.0


@dataclass
class Head:
    """The loop's one step; it owns the executor."""

    store: Store
    executor: Executor
    artifacts: ArtifactStore
    toolchain: Toolchain
    _results: list[TaskResult] = field(default_factory=list)  #: collected, and not stored yet
    _begun: set[str] = field(default_factory=set)  #: attempts that this head started
    _asked_to_end: set[str] = field(default_factory=set)
    _digests: dict[str, str] = field(default_factory=dict)  #: of tasks all of whose needs are done
    _token: object = None
    _look_again_at: float = 0.0

    def step(self, wait_s: float = 0.0) -> bool:
        """Collect (waiting so long for a first result), decide, act. Tells whether anything happened.

        Nothing is read or decided while nothing was written, but for a look at the nodes every `LOOK_AGAIN_S`: a head
        that works while others are timed would disturb them.
        """
        self._results = self._results or self.executor.collect(wait_s)
        has_results = bool(self._results)
        self._store_results()
        token = self.store.database.change_token()
        if not has_results and token == self._token and time.monotonic() < self._look_again_at:
            return False
        self._token, self._look_again_at = token, time.monotonic() + LOOK_AGAIN_S
        snapshot = self.store.snapshot()
        if self._end_strays(snapshot):
            return True
        ended = [running for running in snapshot.running if self._tend(running)]
        if ended:
            snapshot = self.store.snapshot()
        actions = scheduler.decide(snapshot, self.executor.nodes(), self._twins(snapshot))
        acted = [self._act(action) for action in actions]
        return has_results or bool(ended) or any(acted)

    def hand_back(self) -> None:
        """End the processes of all that this head started and give it back to the queue: somebody else may lead next.

        Somebody may do so already: what others started is theirs.
        """
        self.executor.close()
        self._store_results()
        for running in self.store.snapshot().running:
            if running.id in self._begun:
                self._give_up(running, Failure(FailureKind.HANDED_BACK, "the process that led was ended"))

    def _store_results(self) -> None:
        """Store what was collected; what is not stored yet when something is raised is tried again."""
        while self._results:
            self._store(self._results[0])
            del self._results[0]

    def _store(self, result: TaskResult) -> None:
        with suppress(Conflict):  # a late answer of an attempt that was given up changes nothing
            try:
                self.store.finish(result)
            except HaloError:
                raise
            except Exception as error:  # one result that can't be stored must not keep the others from it
                reason = f"its result can't be stored: {error}".splitlines()[0]
                self.store.finish(TaskResult(result.attempt, result.epoch, Failure(FailureKind.INTERNAL, reason)))

    def _end_strays(self, snapshot: Snapshot) -> bool:
        """End what runs here and was given back by somebody else, who led meanwhile. Nothing is started beside it."""
        strays = self.executor.running() - {running.id for running in snapshot.running}
        for stray in strays - self._asked_to_end:
            self._end(stray)
        return bool(strays)

    def _end(self, attempt: str) -> None:
        self._asked_to_end.add(attempt)
        self.executor.cancel(attempt)

    def _twins(self, snapshot: Snapshot) -> dict[str, str]:
        """Queued tasks whose outputs another one computes, which runs or comes before them: by id, with its id."""
        computing = {running.digest: running.task for running in snapshot.running}
        twins = {}
        for task in scheduler.in_turn(snapshot.tasks):
            if task.state is TaskState.QUEUED and _is_shared(task):
                other = computing.setdefault(self._digest(task), task.id)
                if other != task.id:
                    twins[task.id] = other
        return twins

    def _tend(self, running: RunningAttempt) -> bool:
        """End an attempt whose task was cancelled; give up one that nobody runs. Tells whether its task moved."""
        if running.id not in self.executor.running():
            self._give_up(running, Failure(FailureKind.LEASE_LOST, "nobody runs it any more: whoever led was gone"))
            return True
        if running.state is TaskState.CANCELLING and running.id not in self._asked_to_end:
            self._end(running.id)
        return False

    def _give_up(self, running: RunningAttempt, failure: Failure) -> None:
        with suppress(Conflict):
            self.store.give_back(running.task, running.epoch, failure)

    def _act(self, action: Action) -> bool:
        """Carry one decision out; what somebody else changed meanwhile is left to the next step."""
        with suppress(Conflict):
            match action:
                case Queue(task):
                    return self._queue(task)
                case Block(task, reason):
                    self.store.block(task.id, reason)
                    return True
                case Wait(task, reason, is_stuck):
                    if (task.waits_for, task.is_stuck) != (reason, is_stuck):
                        self.store.set_waits(task.id, reason, is_stuck)
                        return True
                case Start():
                    return self._start(action)
        return False

    def _queue(self, task: OpenTask) -> bool:
        self.store.queue(task.id)
        self._take_over(task)
        return True

    def _start(self, start: Start) -> bool:
        task, stage = start.task, STAGES[start.task.stage]
        if self._take_over(task):
            return True
        inputs = self._inputs(task)
        attempt = Attempt(
            id=f"{task.id}-{task.attempts + 1}",
            epoch=task.epoch + 1,
            stage=task.stage,
            settings=task.settings,
            commands=tuple(stage.commands(task.settings, self.toolchain)),
            inputs=inputs,
            places=start.places,
            timeout_s=task.timeout_s,
            cpus=task.resources.cpus,
        )
        self.executor.open()
        self._begun.add(attempt.id)
        self.store.start(task, attempt, self.toolchain, self._digest(task))
        if failure := self._missing(inputs):
            self.store.give_back(task.id, attempt.epoch, failure)
        else:
            self._hand_over(start, attempt)
        return True

    def _hand_over(self, start: Start, attempt: Attempt) -> None:
        """Have the attempt run; where that can't be, its task is queued again."""
        try:
            refused = self.executor.start([attempt])
        except Unreachable as error:
            self.store.give_back(start.task.id, attempt.epoch, Failure(FailureKind.HANDED_BACK, str(error)))
            raise
        for reason in refused.values():
            self.store.give_back(start.task.id, attempt.epoch, Failure(FailureKind.HANDED_BACK, reason))

    def _missing(self, inputs: Inputs) -> Failure | None:
        """What is wrong when the store lacks an input: no node could make up for it."""
        for stage, artifacts in inputs.items():
            for artifact in artifacts:
                if not self.artifacts.has(artifact):
                    what = f"{artifact.name}, which {stage} made, is gone from the artifact store"
                    advice = f"submit the job again and {stage} makes it anew"
                    return Failure(FailureKind.BAD_INPUT, f"{what}; {advice}")
        return None

    def _take_over(self, task: OpenTask) -> bool:
        """Take an earlier task's outputs instead of running, if its artifacts are still there."""
        if not _is_shared(task):
            return False
        digest = self._digest(task)
        earlier = self.store.find_cached(digest)
        if earlier is None or not all(self.artifacts.has(artifact) for artifact in earlier.artifacts):
            return False
        self.store.take_over(task.id, digest, earlier.task)
        return True

    def _inputs(self, task: OpenTask) -> Inputs:
        return {need.stage: self.store.outputs(need.id) for need in task.needed}

    def _digest(self, task: OpenTask) -> str:
        if task.id not in self._digests:
            stage, inputs = STAGES[task.stage], self._inputs(task)
            self._digests[task.id] = task_digest(stage, task.settings, self.toolchain, inputs)
        return self._digests[task.id]


def _is_shared(task: OpenTask) -> bool:
    """Whether its outputs may be another task's too."""
    return task.reuse and not STAGES[task.stage].is_measured
