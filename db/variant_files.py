"""The files that variants consist of: what export and compile made for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from db import tables
from db.engine import Database
from db.filters import parts
from db.ids import AFTER_ALL, find_job
from jobs.state import DONE
from jobs.task import Artifact

STAGES = ("export", "compile")


@dataclass(frozen=True)
class VariantFiles:
    """A variant on a target, by the newest job that exported and compiled it, or took that over."""

    variant: str
    target: str
    job: str
    export_task: str
    compile_task: str
    compiler: str  #: the path that the compiler ran from; empty where that is not known
    versions: Mapping[str, str]  #: of what it was compiled under
    files: tuple[Artifact, ...]


def variant_files(
    database: Database, prefix: str, *, target: str | None = None, job: str | None = None
) -> list[VariantFiles]:
    """The variants whose names start so, in the order of their names, each once for each target."""
    cells, tasks, jobs = tables.cells.c, tables.tasks.c, tables.jobs.c
    query = (
        select(cells.variant, cells.target, cells.stage, cells.job, tasks.id, tasks.attempt)
        .join(tables.tasks, tasks.id == cells.task)
        .join(tables.jobs, jobs.id == cells.job)
        .where(cells.variant >= prefix, cells.variant < prefix + AFTER_ALL)
        .where(cells.stage.in_(STAGES), tasks.state.in_(sorted(DONE)), jobs.imported_from.is_(None))
        .order_by(cells.variant, cells.target, jobs.submitted_at.desc(), cells.job)
    )
    with database.reading() as connection:
        if target is not None:
            query = query.where(cells.target == target)
        if job is not None:
            query = query.where(cells.job == find_job(connection, job))
        made: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for row in connection.execute(query):
            made.setdefault((row.variant, row.target), {}).setdefault(row.job, {})[row.stage] = row
        newest = [
            next(by_stage for by_stage in by_job.values() if len(by_stage) == len(STAGES))
            for by_job in made.values()
            if any(len(by_stage) == len(STAGES) for by_stage in by_job.values())
        ]
        return _complete(connection, newest)


def _complete(connection: Connection, found: list[dict[str, Any]]) -> list[VariantFiles]:
    """With the files of both attempts, and what is known of the compiler's."""
    attempts, files = tables.attempts.c, tables.artifacts.c
    wanted = sorted({row.attempt for by_stage in found for row in by_stage.values()})
    artifacts: dict[str, list[Artifact]] = {attempt: [] for attempt in wanted}
    made: dict[str, Any] = {}
    for part in parts(wanted):
        for row in connection.execute(select(tables.artifacts).where(files.attempt.in_(part)).order_by(files.name)):
            artifacts[row.attempt].append(Artifact(row.name, row.kind, row.sha256, row.size_bytes))
        columns = (attempts.id, attempts.processes, attempts.versions)
        made |= {row.id: row for row in connection.execute(select(*columns).where(attempts.id.in_(part)))}
    return [_of(by_stage["export"], by_stage["compile"], artifacts, made) for by_stage in found]


def _of(exported: Any, compiled: Any, artifacts: Mapping[str, list[Artifact]], made: Mapping[str, Any]) -> VariantFiles:
    processes = made[compiled.attempt].processes
    return VariantFiles(
        variant=compiled.variant,
        target=compiled.target,
        job=compiled.job,
        export_task=exported.id,
        compile_task=compiled.id,
        compiler=processes[0]["argv"][0] if processes else "",
        versions=made[compiled.attempt].versions,
        files=(*artifacts[exported.attempt], *artifacts[compiled.attempt]),
    )
