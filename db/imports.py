"""Results that other programs wrote, as jobs that have ended: every reader finds them, and nothing is taken from them.

A job for each model and time, and for each more of what is in one place of its matrix; a task, carried out by an
attempt, for each cell. They go the way that every task goes,
within one transaction, so that no head ever sees one that could be run. They have no files, no identity and no
duration: no cache hits them, and no estimate is made from them.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from db import attempts, moves, submission, tables
from db.attempts import Begun
from db.engine import Database
from db.filters import parts
from db.ids import attempt_id, find_job, task_ids
from db.imported import DIGEST, is_imported
from db.moves import Move
from jobs.errors import NothingToDo
from jobs.plan import Plan, PlannedTask
from jobs.stages.base import Model, parallelism
from jobs.state import Failure, TaskState
from jobs.task import Attempt, Measurement, Place, Resources, TaskResult
from jobs.toolchains import Toolchain
from jobs.variants import Variant

NODE = "imported"  #: where attempts ran whose files don't say
RENUMBERED = (
    update(tables.measurements).where(tables.measurements.c.id == bindparam("_was")).values(id=bindparam("_id"))
)


@dataclass(frozen=True)
class FoundCell:
    """One stage of one variant, as somebody else's file tells of it."""

    model: str
    variant: Variant
    stage: str
    at: datetime
    digest: str  #: equal for what is the same: it is stored once
    failure: Failure | None = None  #: none: it passed
    measurements: tuple[Measurement, ...] = ()
    links: tuple[tuple[str, str], ...] = ()  #: what was linked to: its name, and its address
    line: int | None = None  #: of the file


@dataclass(frozen=True)
class Imported:
    """What came of an import."""

    jobs: tuple[str, ...]  #: that were made
    cells: int  #: that they have
    known: Mapping[str, int]  #: by earlier job, how many cells were imported already


def take_in(database: Database, cells: Sequence[FoundCell], file: str, by: str, node: str = NODE) -> Imported:
    """Store cells as results of their own times; those that were imported before are left out."""
    with database.writing() as connection:
        known = _known(connection, [cell.digest for cell in cells])
        jobs: dict[tuple[str, datetime, int], list[FoundCell]] = defaultdict(list)
        alike: Counter[tuple[Any, ...]] = Counter()
        for cell in {cell.digest: cell for cell in cells if cell.digest not in known}.values():
            place = (cell.model, cell.at, cell.variant.name, cell.variant.target, cell.stage)
            jobs[cell.model, cell.at, alike[place]].append(cell)
            alike[place] += 1
        made = [_store(connection, found, file, by, node) for found in jobs.values()]
        if made:
            _put_in_order(connection)
    counts: dict[str, int] = defaultdict(int)
    for job in known.values():
        counts[job] += 1
    return Imported(tuple(made), sum(map(len, jobs.values())), counts)


def _known(connection: Connection, digests: Sequence[str]) -> dict[str, str]:
    columns = tables.imports.c
    found: dict[str, str] = {}
    for part in parts(sorted(set(digests))):
        rows = connection.execute(select(columns.digest, columns.job).where(columns.digest.in_(part)))
        found |= {row.digest: row.job for row in rows}
    return found


def _store(connection: Connection, cells: Sequence[FoundCell], file: str, by: str, node: str) -> str:
    """A job of one model and one time."""
    first = cells[0]
    model = Model(text=first.model, name=first.model, digest="", parameters=0, has_weights=False)
    job = submission.submit(
        connection,
        first.at,
        _plan(cells),
        name=file,
        spec={"name": file, "model": first.model},
        model=model,
        submitted_by=by,
        timeout_s=0.0,
        reuse=False,
        imported_from=file,
    )
    tasks = task_ids(job, len(cells))
    connection.execute(update(tables.tasks).where(tables.tasks.c.job == job).values(likeness=None))
    _carry_out(connection, dict(zip(tasks, cells, strict=True)), file, node)
    connection.execute(insert(tables.imports), [{"digest": cell.digest, "job": job} for cell in cells])
    return job


def _plan(cells: Sequence[FoundCell]) -> Plan:
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


def _settings(cell: FoundCell) -> dict[str, Any]:
    said = {"line": cell.line, "links": [list(link) for link in cell.links]}
    return {
        "target": cell.variant.target,
        **parallelism(cell.variant),
        "engine": cell.variant.engine.value,
        **{name: value for name, value in said.items() if value},
    }


def _carry_out(connection: Connection, cells: Mapping[str, FoundCell], file: str, node: str) -> None:
    """From pending to the end, in the order that `db check` knows."""
    at = next(iter(cells.values())).at
    held = moves.lock(connection, cells)
    moves.make(connection, at, [Move(found, TaskState.QUEUED) for found in held.values()])
    begun = [_begun(task, cell, node) for task, cell in cells.items()]
    attempts.begin(connection, at, begun)
    tasks = sorted(cells)
    for part in parts(tasks):
        unlike = {"identity": None, "weight": 0.0}
        connection.execute(update(tables.attempts).where(tables.attempts.c.task.in_(part)).values(**unlike))
    attempts.end(connection, at, [_result(task, cell, file) for task, cell in cells.items()])


def _begun(task: str, cell: FoundCell, node: str) -> Begun:
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
    return Begun(attempt, toolchain, DIGEST + cell.digest)


def _result(task: str, cell: FoundCell, file: str) -> TaskResult:
    numbers = (replace(one, context={**one.context, "imported_from": file}) for one in cell.measurements)
    return TaskResult(attempt_id(task, 1), 1, cell.failure, measurements=tuple(numbers))


def _put_in_order(connection: Connection) -> None:
    """Numbers of measurements grow with time: those of what was before the newest of our own go below all of them."""
    numbers, columns = tables.measurements.c, tables.attempts.c
    query = (
        select(numbers.id, columns.ended_at, tables.jobs.c.imported_from)
        .join(tables.attempts, columns.id == numbers.attempt)
        .join(tables.tasks, tables.tasks.c.id == columns.task)
        .join(tables.jobs, tables.jobs.c.id == tables.tasks.c.job)
    )
    own = query.where(tables.jobs.c.imported_from.is_(None)).order_by(numbers.id.desc()).limit(1)
    newest = connection.execute(own).one_or_none()
    others = query.where(tables.jobs.c.imported_from.is_not(None))
    found = [row for row in connection.execute(others) if newest is None or row.ended_at < newest.ended_at]
    ids = [row.id for row in sorted(found, key=lambda row: (row.ended_at, row.id))]
    above = _lowest(connection, but=ids)
    for end in (min(_lowest(connection), above) - len(ids), above):  # twice: no two have one number in between
        moved = [end - len(ids) + place for place in range(len(ids))]
        if ids:
            connection.execute(RENUMBERED, [{"_was": was, "_id": now} for was, now in zip(ids, moved, strict=True)])
        ids = moved


def _lowest(connection: Connection, but: Sequence[int] = ()) -> int:
    """The lowest number of a measurement, some aside; SQLite numbers what comes from the highest on, be it below 0."""
    number, aside = tables.measurements.c.id, set(but)
    numbers = connection.scalars(select(number).order_by(number).limit(len(aside) + 1))
    return next((number for number in numbers if number not in aside), 0)


def forget(database: Database, name: str) -> str:
    """Remove an imported job with all that is about it; returns its id. Raises NotFound, NothingToDo."""
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
    return job
