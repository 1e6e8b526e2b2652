"""Import the results of other programs as ended jobs, which every query includes and no task reuses.

There is a job for each model and time, and a further one for each further cell in the same place of its matrix; each
cell has a task with one attempt. Tasks pass through the usual states within one transaction, so that no head ever sees
one that could run. They have no files, no identity and no duration: nothing is reused or estimated from them.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import parts
from db.schema.ids import attempt_id, find_job, task_ids
from db.schema.imported import DIGEST, is_imported
from db.writes import attempts, changes, transitions
from db.writes.attempts import NewAttempt
from db.writes.changes import ChangeAction
from db.writes.submission import Submission, insert_job
from db.writes.transitions import Transition
from jobs.errors import NothingToDo
from jobs.plan import Plan, PlannedTask
from jobs.stages.base import Model, parallelism_settings
from jobs.state import Failure, TaskState
from jobs.task import Attempt, Measurement, Place, Resources, TaskResult
from jobs.toolchains import Toolchain
from jobs.variants import Variant

NODE = "imported"  #: where attempts ran whose files don't say
RENUMBERED = (
    update(tables.measurements).where(tables.measurements.c.id == bindparam("_was")).values(id=bindparam("_id"))
)


@dataclass(frozen=True)
class ImportedCell:
    """One stage of one variant, as read from a file."""

    model: str
    variant: Variant
    stage: str
    at: datetime
    digest: str  #: equal for equal cells, which are stored once
    failure: Failure | None = None  #: none: it passed
    measurements: tuple[Measurement, ...] = ()
    links: tuple[tuple[str, str], ...] = ()  #: links, each with name and address
    line: int | None = None  #: of the file


@dataclass(frozen=True)
class ImportSummary:
    """The outcome of an import."""

    jobs: tuple[str, ...]  #: that were made
    cells: int  #: that they have
    known: Mapping[str, int]  #: by earlier job, how many cells were imported already


def import_cells(
    database: Database, cells: Sequence[ImportedCell], file: str, by: str, node: str = NODE
) -> ImportSummary:
    """Store cells as results with their original times; those imported before are left out."""
    with database.writing() as connection:
        known = _known(connection, [cell.digest for cell in cells])
        jobs: dict[tuple[str, datetime, int], list[ImportedCell]] = defaultdict(list)
        copies: Counter[tuple[Any, ...]] = Counter()
        for cell in {cell.digest: cell for cell in cells if cell.digest not in known}.values():
            place = (cell.model, cell.at, cell.variant.name, cell.variant.target, cell.stage)
            jobs[cell.model, cell.at, copies[place]].append(cell)
            copies[place] += 1
        new_jobs = [_store(connection, job_cells, file, by, node) for job_cells in jobs.values()]
        if new_jobs:
            _put_in_order(connection)
            changes.record(connection, ChangeAction.IMPORT, file, ", ".join(new_jobs))
    counts: dict[str, int] = defaultdict(int)
    for job in known.values():
        counts[job] += 1
    return ImportSummary(tuple(new_jobs), sum(map(len, jobs.values())), counts)


def _known(connection: Connection, digests: Sequence[str]) -> dict[str, str]:
    columns = tables.imports.c
    jobs: dict[str, str] = {}
    for part in parts(sorted(set(digests))):
        rows = connection.execute(select(columns.digest, columns.job).where(columns.digest.in_(part)))
        jobs |= {row.digest: row.job for row in rows}
    return jobs


def _store(connection: Connection, cells: Sequence[ImportedCell], file: str, by: str, node: str) -> str:
    """Store a job of one model and one time; returns its id."""
    first = cells[0]
    model = Model(text=first.model, name=first.model, digest="", parameters=0, has_weights=False)
    submission = Submission(
        plan=_plan(cells),
        name=file,
        spec={"name": file, "model": first.model},
        model=model,
        submitted_by=by,
        timeout_s=0.0,
        reuse=False,
        imported_from=file,
    )
    job = insert_job(connection, first.at, submission)
    tasks = task_ids(job, len(cells))
    connection.execute(update(tables.tasks).where(tables.tasks.c.job == job).values(duration_key=None))
    _carry_out(connection, dict(zip(tasks, cells, strict=True)), file, node)
    connection.execute(insert(tables.imports), [{"digest": cell.digest, "job": job} for cell in cells])
    return job


def _plan(cells: Sequence[ImportedCell]) -> Plan:
    tasks = tuple(
        PlannedTask(
            key=cell.digest,
            stage=cell.stage,
            settings=_settings(cell),
            needs=(),
            resources=Resources(cpus=0, memory_bytes=0),
            variants=(cell.variant,),
            toolchain=cell.variant.toolchain,
        )
        for cell in cells
    )
    return Plan(tuple(dict.fromkeys(cell.variant for cell in cells)), tasks)


def _settings(cell: ImportedCell) -> dict[str, Any]:
    origin = {"line": cell.line, "links": [list(link) for link in cell.links]}
    return {
        "target": cell.variant.target,
        **parallelism_settings(cell.variant),
        "engine": cell.variant.engine,
        **{name: value for name, value in origin.items() if value},
    }


def _carry_out(connection: Connection, cells: Mapping[str, ImportedCell], file: str, node: str) -> None:
    """Take tasks from pending to their ends, in the order that `haloctl db check` requires."""
    at = next(iter(cells.values())).at
    tasks = transitions.lock(connection, cells)
    transitions.apply(connection, at, [Transition(task, TaskState.QUEUED) for task in tasks.values()])
    attempts.start(connection, at, [_new_attempt(task, cell, node) for task, cell in cells.items()])
    for part in parts(sorted(cells)):
        unlike = {"identity": None, "weight": 0.0}
        connection.execute(update(tables.attempts).where(tables.attempts.c.task.in_(part)).values(**unlike))
    attempts.end(connection, at, [_result(task, cell, file) for task, cell in cells.items()])


def _new_attempt(task: str, cell: ImportedCell, node: str) -> NewAttempt:
    attempt = Attempt(
        id=attempt_id(task, 1),
        epoch=1,
        stage=cell.stage,
        settings=_settings(cell),
        commands=(),
        inputs={},
        places=(Place(node, ()),),
        timeout_s=0.0,
    )
    toolchain = Toolchain(cell.variant.toolchain, {}, host_cpu="", programs="")
    return NewAttempt(attempt, toolchain, DIGEST + cell.digest)


def _result(task: str, cell: ImportedCell, file: str) -> TaskResult:
    numbers = (
        replace(measurement, context={**measurement.context, "imported_from": file})
        for measurement in cell.measurements
    )
    return TaskResult(attempt_id(task, 1), 1, cell.failure, measurements=tuple(numbers))


def _put_in_order(connection: Connection) -> None:
    """Renumber imported measurements that are older than the newest measured one below all others.

    Queries rely on ids of measurements that grow with time."""
    numbers, columns = tables.measurements.c, tables.attempts.c
    query = (
        select(numbers.id, columns.ended_at, tables.jobs.c.imported_from)
        .join(tables.attempts, columns.id == numbers.attempt)
        .join(tables.tasks, tables.tasks.c.id == columns.task)
        .join(tables.jobs, tables.jobs.c.id == tables.tasks.c.job)
    )
    measured = query.where(tables.jobs.c.imported_from.is_(None)).order_by(numbers.id.desc()).limit(1)
    newest = connection.execute(measured).one_or_none()
    others = query.where(tables.jobs.c.imported_from.is_not(None))
    earlier = [row for row in connection.execute(others) if newest is None or row.ended_at < newest.ended_at]
    ids = [row.id for row in sorted(earlier, key=lambda row: (row.ended_at, row.id))]
    above = _lowest(connection, but=ids)
    for end in (min(_lowest(connection), above) - len(ids), above):  # twice: no two have one number in between
        moved = [end - len(ids) + place for place in range(len(ids))]
        if ids:
            connection.execute(RENUMBERED, [{"_was": was, "_id": now} for was, now in zip(ids, moved, strict=True)])
        ids = moved


def _lowest(connection: Connection, but: Sequence[int] = ()) -> int:
    """Return the lowest id of a measurement, except some; SQLite numbers on from the highest, even if it is below 0."""
    number, excluded = tables.measurements.c.id, set(but)
    numbers = connection.scalars(select(number).order_by(number).limit(len(excluded) + 1))
    return next((number for number in numbers if number not in excluded), 0)


def forget(database: Database, name: str) -> str:
    """Delete an imported job with all rows that refer to it; returns its id. Raises NotFound, NothingToDo."""
    with database.writing() as connection:
        job = find_job(connection, name)
        if not is_imported(connection, job):
            raise NothingToDo(f"job {job} was not imported, and stays")
        of_job = select(tables.tasks.c.id).where(tables.tasks.c.job == job)
        of_tasks = select(tables.attempts.c.id).where(tables.attempts.c.task.in_(of_job))
        rows = {tables.jobs.c.id: [job], tables.tasks.c.id: of_job, tables.attempts.c.id: of_tasks}
        for table in reversed(tables.metadata.sorted_tables):
            for key in [reference for column in table.columns for reference in column.foreign_keys]:
                if key.column in rows:
                    connection.execute(delete(table).where(key.parent.in_(rows[key.column])))
        connection.execute(delete(tables.jobs).where(tables.jobs.c.id == job))
        changes.record(connection, ChangeAction.REMOVE_IMPORT, job)
    return job
