"""A cache hit beside a collector: whatever each is about to do when the other does all of its work, no file is lost."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from db.connection.engine import Database
from db.reads import artifact_refs
from db.reads.artifact_refs import ReferencedFiles
from db.store import Store
from jobs.task import Artifact
from orchestrator.artifacts import collection
from orchestrator.leader.cache import OutputCache
from tests.stored_jobs import TINY, TOOLCHAIN, finish, open_task, result_of, start, submit
from workers.artifacts import ArtifactStore

NEVER = datetime(9999, 1, 1, tzinfo=UTC)
AGE_S = 2 * 3600.0

Hook = Callable[[], None]


@dataclass
class Interruption:
    """Runs an action before one of the steps of something else."""

    at: int  #: the number of the step
    action: Hook
    steps: int = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps - 1 == self.at:
            self.action()


class SteppingBackend:
    """A backend that tells before each of its calls."""

    def __init__(self, backend: Any, step: Hook) -> None:
        self._backend, self._step = backend, step

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._backend, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self._step()
            return attribute(*arguments, **options)

        return call if callable(attribute) else attribute


class SteppingArtifacts(ArtifactStore):
    """An artifact store that tells before each call of its backend."""

    def __init__(self, where: Path, step: Hook) -> None:
        super().__init__(where)
        self._backend = SteppingBackend(self._backend, step)


class SteppingStore(Store):
    """A database that tells before it records cache hits."""

    def __init__(self, database: Database, step: Hook) -> None:
        super().__init__(database)
        self._step = step

    def record_cache_hits(self, hits: Any) -> set[str]:
        self._step()
        return super().record_cache_hits(hits)


@dataclass
class OldResult:
    """The file of an old job that no job refers to, and a new task that it serves."""

    database: Database
    folder: Path
    task: str
    made: Artifact

    def use(self, step: Hook = lambda: None) -> bool:
        """Have a head look for cache hits; returns whether the task was one."""
        cache = OutputCache(SteppingStore(self.database, step), SteppingArtifacts(self.folder, step), TOOLCHAIN)
        task = open_task(Store(self.database), self.task)
        cache.compute_digests([task])
        return self.task in cache.apply([task])

    def collect(self, step: Hook = lambda: None) -> bool:
        """Collect what ended jobs made; returns whether the file was removed."""
        artifacts = SteppingArtifacts(self.folder, step)

        def read_kept() -> ReferencedFiles:
            step()
            return artifact_refs.referenced(self.database, NEVER)

        result = collection.collect(artifacts, read_kept, artifacts.clock())
        return self.made.sha256 in {file.sha256 for file in result.removed}

    @property
    def is_there(self) -> bool:
        return ArtifactStore(self.folder).has(self.made)


numbers = count(1)


@pytest.fixture
def make_old_result(database: Database, tmp_path: Path) -> Callable[[], OldResult]:
    def make() -> OldResult:
        store, folder, number = Store(database), tmp_path / "artifacts", next(numbers)
        file = tmp_path / "model.mlir"
        file.write_text(f"module {{}} {number}")
        made = ArtifactStore(folder).put(file, "mlir")
        age(folder, made)
        model = replace(TINY, digest=f"{number:064x}")
        old = f"{submit(store, model=model, stages=['export'])}-01"
        cache = OutputCache(store, ArtifactStore(folder), TOOLCHAIN)
        cache.compute_digests([open_task(store, old)])
        attempt = start(store, old, digest=cache.digest_of(open_task(store, old)))
        finish(store, replace(result_of(attempt, measurements=()), artifacts=(made,)))
        newer = f"{submit(store, stages=['export'])}-01"
        finish(store, replace(result_of(start(store, newer), measurements=()), artifacts=()))
        task = f"{submit(store, model=model, stages=['export', 'compile'])}-01"
        store.queue([task])
        return OldResult(database, folder, task, made)

    return make


def age(folder: Path, artifact: Artifact) -> None:
    at = (datetime.now(UTC) - timedelta(seconds=AGE_S)).timestamp()
    for file in (folder / "sha256" / artifact.sha256[:2] / artifact.sha256, folder / "used" / artifact.sha256):
        os.utime(file, (at, at))


def test_a_file_is_collected_or_used_but_never_both(make_old_result: Callable[[], OldResult]) -> None:
    outcomes = set()
    for number in count():
        result = make_old_result()
        removed: list[bool] = []
        interruption = Interruption(number, lambda result=result, removed=removed: removed.append(result.collect()))  # type: ignore[misc]
        is_hit = result.use(interruption.step)
        assert result.is_there or not is_hit, f"collected before step {number} of the hit"
        if not removed:
            break
        outcomes.add((removed[0], is_hit))
    assert number >= 3
    assert outcomes == {(True, False), (False, True)}, "one of the two sees the other"


def test_a_file_is_used_or_collected_but_never_both(make_old_result: Callable[[], OldResult]) -> None:
    outcomes = set()
    for number in count():
        result = make_old_result()
        hits: list[bool] = []
        interruption = Interruption(number, lambda result=result, hits=hits: hits.append(result.use()))  # type: ignore[misc]
        is_removed = result.collect(interruption.step)
        if not hits:
            break
        assert result.is_there or not hits[0], f"used before step {number} of the collection"
        outcomes.add((is_removed, hits[0]))
    assert number >= 5
    assert {(True, False), (False, True)} <= outcomes
