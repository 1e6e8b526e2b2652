"""What is the same: the digests of tasks, who computes what another one wants too, and what need not run at all."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from db.store import KeptLock, OpenTask, Snapshot, Store, TakeOver
from jobs.digest import task_digest
from jobs.stages import stage_of
from jobs.state import DONE, TaskState
from jobs.task import Artifact
from jobs.toolchains import DEFAULT, Toolchain
from orchestrator import scheduler
from workers.artifacts import ArtifactStore
from workers.failures import LostFile

Inputs = Mapping[str, tuple[Artifact, ...]]

FORGET_ABOVE = 1000  #: digests of tasks that are not open any more


@dataclass
class Reuse:
    """Remembers the digests of open tasks, so that each is computed once."""

    store: Store
    artifacts: ArtifactStore
    toolchain: Toolchain
    _digests: dict[str, str] = field(default_factory=dict)  #: of tasks all of whose needs are done
    _under: Mapping[str, Toolchain] = field(default_factory=dict)  #: what other toolchains' names stand for
    _learned_under: dict[str, str] = field(default_factory=dict)  #: locks of these and earlier ones, by name
    _outputs: dict[str, tuple[Artifact, ...]] = field(default_factory=dict)  #: of done tasks that others need

    def use(self, locks: Mapping[str, KeptLock]) -> None:
        """Have toolchains' names stand for these locks from now on."""
        digests = {name: kept.digest for name, kept in locks.items()}
        if any(self._learned_under.get(name, digest) != digest for name, digest in digests.items()):
            self._digests.clear()
        self._learned_under |= digests
        self._under = {
            name: kept.lock.toolchain(self.toolchain, kept.compiler_flags or frozenset())
            for name, kept in locks.items()
        }

    def toolchain_of(self, task: OpenTask) -> Toolchain:
        """What a learned task runs under."""
        return self.toolchain if task.toolchain == DEFAULT else self._under[task.toolchain]

    def learn(self, tasks: Iterable[OpenTask]) -> None:
        """Compute the digests of tasks all of whose needs are done, where they are not known.

        Those whose toolchain's name stands for nothing yet are left out.
        """
        new = [task for task in tasks if task.id not in self._digests and self._is_resolved(task)]
        wanted = {need.id for task in new for need in task.needed} - self._outputs.keys()
        if wanted:
            self._outputs |= self.store.all_outputs(wanted)
        for task in new:
            stage = stage_of(task.stage, task.settings)
            self._digests[task.id] = task_digest(stage, task.settings, self.toolchain_of(task), self.inputs(task))

    def inputs(self, task: OpenTask) -> Inputs:
        """What the tasks that a learned one needs made, by their stages."""
        return {need.stage: self._outputs[need.id] for need in task.needed}

    def new_of(self, tasks: Sequence[OpenTask]) -> list[OpenTask]:
        """Those under other toolchains than the default that were queued before they could be learned, and can be."""
        done = {task.id for task in tasks if task.state in DONE}
        return [
            task
            for task in tasks
            if task.toolchain in self._under
            and task.state is TaskState.QUEUED
            and task.id not in self._digests
            and done.issuperset(task.needs)
        ]

    def _is_resolved(self, task: OpenTask) -> bool:
        return task.toolchain == DEFAULT or task.toolchain in self._under

    def digest(self, task: OpenTask) -> str:
        """Of a learned task."""
        return self._digests[task.id]

    def forget(self) -> None:
        """Forget what was learned: something is made again, and may come out otherwise."""
        self._digests.clear()
        self._outputs.clear()

    def twins(self, snapshot: Snapshot) -> dict[str, str]:
        """Queued tasks whose outputs another one computes, which runs or comes before them: by id, with its id."""
        done = {task.id for task in snapshot.tasks if task.state in DONE}
        queued = [task for task in snapshot.tasks if task.state is TaskState.QUEUED and done.issuperset(task.needs)]
        self._forget(snapshot)
        self.learn(queued)
        computing = {running.digest: running.task for running in snapshot.running}
        alike: dict[str, list[OpenTask]] = defaultdict(list)
        for task in queued:
            if task.reuse and task.id in self._digests:
                alike[self._digests[task.id]].append(task)
        twins = {}
        for digest, tasks in alike.items():
            first = computing.get(digest) or _first(tasks, snapshot.usage)
            twins.update({task.id: first for task in tasks if task.id != first})
        return twins

    def found(self, tasks: Iterable[OpenTask]) -> list[TakeOver]:
        """Those of the learned tasks that an earlier one with the same digest was done for, if its files are there."""
        shared = [task for task in tasks if task.reuse and task.id in self._digests]
        if not shared:
            return []
        cached = self.store.find_all_cached({self.digest(task) for task in shared})
        gone = self.artifacts.missing(artifact for earlier in cached.values() for artifact in earlier.artifacts)
        is_whole = {digest: gone.isdisjoint(earlier.artifacts) for digest, earlier in cached.items()}
        return [
            TakeOver(task.id, self.digest(task), cached[self.digest(task)].task)
            for task in shared
            if is_whole.get(self.digest(task))
        ]

    def lost(self, tasks: Iterable[OpenTask]) -> dict[str, tuple[LostFile, ...]]:
        """By learned task, the inputs that the store lacks; raises StorageUnusable where there is no store."""
        inputs = {task.id: self.inputs(task) for task in tasks}
        self.artifacts.expect()
        wanted = {artifact for stages in inputs.values() for files in stages.values() for artifact in files}
        gone = self.artifacts.missing(wanted)
        found = {
            task: tuple(
                LostFile(stage, one, "gone from the artifact store")
                for stage, files in stages.items()
                for one in files
                if one in gone
            )
            for task, stages in inputs.items()
        }
        return {task: lost for task, lost in found.items() if lost}

    def _forget(self, snapshot: Snapshot) -> None:
        """Let go of what is over, now and then."""
        if len(self._digests) > 2 * len(snapshot.tasks) + FORGET_ABOVE:
            live = {task.id for task in snapshot.tasks}
            for held in (self._digests, self._outputs):
                for task in held.keys() - live:
                    del held[task]


def _first(tasks: Sequence[OpenTask], usage: Mapping[str, float]) -> str:
    return tasks[0].id if len(tasks) == 1 else scheduler.in_turn(tasks, usage)[0].id
