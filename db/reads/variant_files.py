"""The files that variants consist of: what export and compile made for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import parts
from db.schema.ids import AFTER_ALL, find_job
from jobs.state import DONE
from jobs.task import Artifact

STAGES = ("export", "compile")


@dataclass(frozen=True)
class VariantFiles:
    """A variant on a target, from the newest job that exported and compiled it, or reused both."""

    variant: str
    target: str
    job: str
    export_task: str
    compile_task: str
    compiler: str  #: the path that the compiler ran from; empty where that is not known
    versions: Mapping[str, str]  #: of the software that it was compiled with
    files: tuple[Artifact, ...]


def variant_files(
    database: Database, prefix: str, *, target: str | None = None, job: str | None = None
) -> list[VariantFiles]:
    """Return the variants whose names have a prefix, by name, each once for each target."""
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
        rows_by_variant: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for row in connection.execute(query):
            rows_by_variant.setdefault((row.variant, row.target), {}).setdefault(row.job, {})[row.stage] = row
        newest = [
            next(by_stage for by_stage in by_job.values() if len(by_stage) == len(STAGES))
            for by_job in rows_by_variant.values()
            if any(len(by_stage) == len(STAGES) for by_stage in by_job.values())
        ]
        return _complete(connection, newest)


def _complete(connection: Connection, rows_by_stage: list[dict[str, Any]]) -> list[VariantFiles]:
    """Add the files of both attempts, and the compiler's path and versions."""
    attempts, files = tables.attempts.c, tables.artifacts.c
    wanted = sorted({row.attempt for by_stage in rows_by_stage for row in by_stage.values()})
    artifacts: dict[str, list[Artifact]] = {attempt: [] for attempt in wanted}
    attempt_rows: dict[str, Any] = {}
    for part in parts(wanted):
        for row in connection.execute(select(tables.artifacts).where(files.attempt.in_(part)).order_by(files.name)):
            artifacts[row.attempt].append(Artifact(row.name, row.kind, row.sha256, row.size_bytes))
        columns = (attempts.id, attempts.processes, attempts.versions)
        attempt_rows |= {row.id: row for row in connection.execute(select(*columns).where(attempts.id.in_(part)))}
    return [_of(by_stage["export"], by_stage["compile"], artifacts, attempt_rows) for by_stage in rows_by_stage]


def _of(
    exported: Any, compiled: Any, artifacts: Mapping[str, list[Artifact]], attempt_rows: Mapping[str, Any]
) -> VariantFiles:
    processes = attempt_rows[compiled.attempt].processes
    return VariantFiles(
        variant=compiled.variant,
        target=compiled.target,
        job=compiled.job,
        export_task=exported.id,
        compile_task=compiled.id,
        compiler=processes[0]["argv"][0] if processes else "",
        versions=attempt_rows[compiled.attempt].versions,
        files=(*artifacts[exported.attempt], *artifacts[compiled.attempt]),
    )
