"""The output cache: the digests of tasks, duplicates among them, and outputs that need not be computed again."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from db.reads.model_files import ModelFiles, model_files
from db.store import CacheHit, OpenTask, Snapshot, Store, StoredLock
from jobs.digest import task_digest
from jobs.exporters import stage_of
from jobs.state import DONE, Failure, TaskState
from jobs.task import Artifact
from jobs.toolchains import DEFAULT, Toolchain
from orchestrator.leader.isolation import failures_of_each
from orchestrator.scheduler import decision
from workers.artifacts import ArtifactStore
from workers.failures import LostFile

Inputs = Mapping[str, tuple[Artifact, ...]]

MAX_CLOSED = 1000  #: number of digests kept of tasks that are not open any more


@dataclass
class OutputCache:
    """Computes the digest of each open task once, and finds earlier tasks with the same digest."""

    store: Store
    artifacts: ArtifactStore
    toolchain: Toolchain  #: the default one
    _digests: dict[str, str] = field(default_factory=dict)  #: of tasks all of whose needs are done
    _toolchains: Mapping[str, Toolchain] = field(default_factory=dict)  #: other toolchains that are resolved, by name
    _locks: dict[str, str] = field(default_factory=dict)  #: digests of their locks and of earlier ones, by name
    _outputs: dict[str, tuple[Artifact, ...]] = field(default_factory=dict)  #: of done tasks that others need
    _model_files: dict[str, ModelFiles] = field(default_factory=dict)  #: by job
    _defects: dict[str, Failure] = field(default_factory=dict)  #: of tasks for which computing the digest raised

    def read_model_files(self, tasks: Iterable[OpenTask]) -> None:
        """Read the sha256 of the files of the tasks' models, once for each job."""
        unknown = {task.job for task in tasks if "model" in task.settings} - self._model_files.keys()
        if unknown:
            self._model_files |= model_files(self.store.database, unknown)

    def model_files_of(self, task: OpenTask) -> Mapping[str, str]:
        """Return the sha256 of each file of a task's model when its job was submitted; they must have been read."""
        if "model" not in task.settings:
            return {}
        return self._model_files[task.job].get(task.settings["model"]["digest"], {})

    def set_locks(self, locks: Mapping[str, StoredLock]) -> None:
        """Resolve toolchains' names by these locks from now on."""
        digests = {name: stored.digest for name, stored in locks.items()}
        if any(self._locks.get(name, digest) != digest for name, digest in digests.items()):
            self._digests.clear()
        self._locks |= digests
        self._toolchains = {
            name: stored.lock.toolchain(self.toolchain, stored.compiler_flags or frozenset())
            for name, stored in locks.items()
        }

    def toolchain_of(self, task: OpenTask) -> Toolchain:
        """Return the toolchain of a task whose digest is computed."""
        return self.toolchain if task.toolchain == DEFAULT else self._toolchains[task.toolchain]

    def compute_digests(self, tasks: Iterable[OpenTask]) -> None:
        """Compute the missing digests of tasks all of whose needs are done, but where a toolchain is not resolved."""
        new = [
            task
            for task in tasks
            if task.id not in self._digests
            and task.defect is None
            and (task.toolchain == DEFAULT or task.toolchain in self._toolchains)
        ]
        unknown = {need.id for task in new for need in task.needed} - self._outputs.keys()
        if unknown:
            self._outputs |= self.store.all_outputs(unknown)
        for task, failure in failures_of_each(new, self._compute_digest):
            self._defects[task.id] = failure

    def _compute_digest(self, task: OpenTask) -> None:
        stage = stage_of(task.stage, task.settings)
        self._digests[task.id] = task_digest(stage, task.settings, self.toolchain_of(task), self.inputs_of(task))

    def has_digest(self, task: OpenTask) -> bool:
        """Return whether the digest of a task is computed."""
        return task.id in self._digests

    def with_defects(self, tasks: tuple[OpenTask, ...]) -> tuple[OpenTask, ...]:
        """Return tasks, those with a defect for which no digest could be computed since the last call."""
        defects, self._defects = self._defects, {}
        if not defects:
            return tasks
        return tuple(replace(task, defect=defects[task.id]) if task.id in defects else task for task in tasks)

    def inputs_of(self, task: OpenTask) -> Inputs:
        """Return the outputs of the tasks that a task needs, by stage; its digest must be computed."""
        return {need.stage: self._outputs[need.id] for need in task.needed}

    def newly_resolved(self, tasks: Sequence[OpenTask]) -> list[OpenTask]:
        """Return the tasks that were queued before their toolchain was resolved, and have no digest yet."""
        done = {task.id for task in tasks if task.state in DONE}
        return [
            task
            for task in tasks
            if task.toolchain in self._toolchains
            and task.state is TaskState.QUEUED
            and task.id not in self._digests
            and done.issuperset(task.needs)
        ]

    def digest_of(self, task: OpenTask) -> str:
        """Return the digest of a task, which must be computed."""
        return self._digests[task.id]

    def clear(self) -> None:
        """Forget digests and outputs: something is made again, and may come out differently."""
        self._digests.clear()
        self._outputs.clear()

    def duplicates(self, snapshot: Snapshot) -> dict[str, str]:
        """Map queued tasks to the task that computes the same outputs, which runs or comes before them."""
        done = {task.id for task in snapshot.tasks if task.state in DONE}
        queued = [task for task in snapshot.tasks if task.state is TaskState.QUEUED and done.issuperset(task.needs)]
        self._evict(snapshot)
        self.compute_digests(queued)
        running = {attempt.digest: attempt.task for attempt in snapshot.running}
        by_digest: dict[str, list[OpenTask]] = defaultdict(list)
        for task in queued:
            if task.reuse and task.id in self._digests:
                by_digest[self._digests[task.id]].append(task)
        duplicates = {}
        for digest, tasks in by_digest.items():
            first = running.get(digest)
            if first is None:
                first = (tasks if len(tasks) == 1 else decision.in_queue_order(tasks, snapshot.usage))[0].id
            duplicates.update({task.id: first for task in tasks if task.id != first})
        return duplicates

    def apply(self, tasks: Iterable[OpenTask]) -> set[str]:
        """Serve tasks from the cache whose digests are computed; return the ids of those that need not run."""
        hits = self._find_hits(tasks)
        return self.store.record_cache_hits(hits) if hits else set()

    def _find_hits(self, tasks: Iterable[OpenTask]) -> list[CacheHit]:
        """Find the tasks for whose digest an earlier one is done, and whose files the store has and keeps for them."""
        cacheable = [task for task in tasks if task.reuse and task.id in self._digests]
        if not cacheable:
            return []
        cached = self.store.find_all_cached({self.digest_of(task) for task in cacheable})
        missing = self.artifacts.use(artifact for earlier in cached.values() for artifact in earlier.artifacts)
        return [
            CacheHit(task.id, digest, cached[digest].task)
            for task in cacheable
            if (digest := self.digest_of(task)) in cached and missing.isdisjoint(cached[digest].artifacts)
        ]

    def missing_inputs(self, tasks: Iterable[OpenTask]) -> dict[str, tuple[LostFile, ...]]:
        """Return the inputs that the artifact store lacks, by task. Raises StorageUnusable without a store."""
        inputs = {task.id: self.inputs_of(task) for task in tasks}
        self.artifacts.expect()
        wanted = {artifact for stages in inputs.values() for files in stages.values() for artifact in files}
        missing = self.artifacts.missing(wanted)
        lost = {
            task: tuple(
                LostFile(stage, artifact, "gone from the artifact store")
                for stage, files in stages.items()
                for artifact in files
                if artifact in missing
            )
            for task, stages in inputs.items()
        }
        return {task: files for task, files in lost.items() if files}

    def _evict(self, snapshot: Snapshot) -> None:
        """Forget tasks that are not open any more, when there are many, and jobs that have ended."""
        for job in self._model_files.keys() - {task.job for task in snapshot.tasks}:
            del self._model_files[job]
        if len(self._digests) > 2 * len(snapshot.tasks) + MAX_CLOSED:
            open_ids = {task.id for task in snapshot.tasks}
            for by_task in (self._digests, self._outputs):
                for task in by_task.keys() - open_ids:
                    del by_task[task]
