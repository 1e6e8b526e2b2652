"""Attempts that a gate judges when they end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, and_, cast, select

from db.connection.engine import Database
from db.reads.runs import axes_among, placed
from db.schema import tables
from db.schema.filters import parts
from jobs.variants import AXES


@dataclass(frozen=True)
class GatedAttempt:
    """An attempt that has ended, of a task whose job has a gate."""

    attempt: str
    task: str
    base_epoch: int  #: its attempts after that one are looked at together
    gate: Mapping[str, Any]  #: as the job file has it
    model: str
    variant: str
    target: str
    axes: Mapping[str, Any]
    place: str
    node: str
    digest: str
    after: str | None = None  #: the task that it is compared with, where its job has that
    after_state: str | None = None


def gated_attempts(database: Database, attempts: Sequence[str]) -> list[GatedAttempt]:
    """Return those of the attempts whose jobs have a gate."""
    columns, tasks, cells = tables.attempts.c, tables.tasks.c, tables.cells.c
    earlier = tables.tasks.alias("earlier")
    query = (
        select(
            columns.id,
            columns.task,
            columns.node,
            columns.digest,
            cast(columns.places, Text).label("places"),
            tasks.base_epoch,
            tasks.after,
            earlier.c.state.label("after_state"),
            tables.jobs.c.spec,
            cells.model,
            cells.variant,
            cells.target,
            *(cells[name] for name in AXES),
        )
        .join(tables.tasks, tasks.id == columns.task)
        .join(earlier, earlier.c.id == tasks.after, isouter=True)
        .join(tables.jobs, tables.jobs.c.id == tasks.job)
        .join(tables.cells, and_(cells.task == tasks.id, cells.is_first))
        .order_by(columns.id, cells.position.desc())
    )
    by_id: dict[str, GatedAttempt] = {}
    with database.reading() as connection:
        for part in parts(sorted(attempts)):
            for row in connection.execute(query.where(columns.id.in_(part))):
                if gate := row.spec.get("gate"):
                    by_id[row.id] = GatedAttempt(
                        attempt=row.id,
                        task=row.task,
                        base_epoch=row.base_epoch,
                        gate=gate,
                        model=row.model,
                        variant=row.variant,
                        target=row.target,
                        axes=axes_among(*(row[-len(AXES) :])),
                        place=placed(row.places)[0],
                        node=row.node,
                        digest=row.digest,
                        after=row.after,
                        after_state=row.after_state,
                    )
    return list(by_id.values())
