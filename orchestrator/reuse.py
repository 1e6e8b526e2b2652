"""What is the same: the digests of tasks, who computes what another one wants too, and what need not run at all."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from db.store import OpenTask, Snapshot, Store, TakeOver
from jobs.digest import task_digest
from jobs.stages import STAGES, stage_of
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Artifact
from jobs.toolchains import Toolchain
from orchestrator import scheduler
from workers.artifacts import ArtifactStore

Inputs = Mapping[str, tuple[Artifact, ...]]

FORGET_ABOVE = 1000  #: digests of tasks that are not open any more


@dataclass
class Reuse:
    """Remembers the digests of open tasks, so that each is computed once."""

    store: Store
    artifacts: ArtifactStore
    toolchain: Toolchain
    _digests: dict[str, str] = field(default_factory=dict)  #: of tasks all of whose needs are done
    _outputs: dict[str, tuple[Artifact, ...]] = field(default_factory=dict)  #: of done tasks that others need

    def learn(self, tasks: Iterable[OpenTask]) -> None:
        """Compute the digests of tasks all of whose needs are done, where they are not known."""
        new = [task for task in tasks if task.id not in self._digests]
        wanted = {need.id for task in new for need in task.needed} - self._outputs.keys()
        if wanted:
            self._outputs |= self.store.all_outputs(wanted)
        for task in new:
            stage = stage_of(task.stage, task.settings)
            self._digests[task.id] = task_digest(stage, task.settings, self.toolchain, self.inputs(task))

    def inputs(self, task: OpenTask) -> Inputs:
        """What the tasks that a learned one needs made, by their stages."""
        return {need.stage: self._outputs[need.id] for need in task.needed}

    def digest(self, task: OpenTask) -> str:
        """Of a learned task."""
        return self._digests[task.id]

    def twins(self, snapshot: Snapshot) -> dict[str, str]:
        """Queued tasks whose outputs another one computes, which runs or comes before them: by id, with its id."""
        queued = [task for task in snapshot.tasks if task.state is TaskState.QUEUED]
        self._forget(snapshot)
        self.learn(queued)
        computing = {running.digest: running.task for running in snapshot.running}
        alike: dict[str, list[OpenTask]] = defaultdict(list)
        for task in queued:
            if is_shared(task):
                alike[self._digests[task.id]].append(task)
        twins = {}
        for digest, tasks in alike.items():
            first = computing.get(digest) or _first(tasks, snapshot.usage)
            twins.update({task.id: first for task in tasks if task.id != first})
        return twins

    def found(self, tasks: Iterable[OpenTask]) -> list[TakeOver]:
        """Those of the learned tasks that an earlier one with the same digest was done for, if its files are there."""
        shared = [task for task in tasks if is_shared(task)]
        if not shared:
            return []
        cached = self.store.find_all_cached({self.digest(task) for task in shared})
        is_whole = {
            digest: all(self.artifacts.has(artifact) for artifact in earlier.artifacts)
            for digest, earlier in cached.items()
        }
        return [
            TakeOver(task.id, self.digest(task), cached[self.digest(task)].task)
            for task in shared
            if is_whole.get(self.digest(task))
        ]

    def missing(self, task: OpenTask) -> Failure | None:
        """What is wrong when the store lacks an input: no node could make up for it."""
        for stage, artifacts in self.inputs(task).items():
            for artifact in artifacts:
                if not self.artifacts.has(artifact):
                    what = f"{artifact.name}, which {stage} made, is gone from the artifact store"
                    advice = f"submit the job again and {stage} makes it anew"
                    return Failure(FailureKind.BAD_INPUT, f"{what}; {advice}")
        return None

    def _forget(self, snapshot: Snapshot) -> None:
        """Let go of what is over, now and then."""
        if len(self._digests) > 2 * len(snapshot.tasks) + FORGET_ABOVE:
            live = {task.id for task in snapshot.tasks}
            for held in (self._digests, self._outputs):
                for task in held.keys() - live:
                    del held[task]


def _first(tasks: Sequence[OpenTask], usage: Mapping[str, float]) -> str:
    return tasks[0].id if len(tasks) == 1 else scheduler.in_turn(tasks, usage)[0].id


def is_shared(task: OpenTask) -> bool:
    """Whether its outputs may be another task's too."""
    return task.reuse and not STAGES[task.stage].is_measured
