"""Files that were lost from the artifact store: the tasks that made them make them again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from db import tables
from db.filters import parts
from db.ids import attempt_id, task_of
from db.moves import Found, Move, make
from jobs.state import DONE, TaskState
from jobs.task import TaskResult


@dataclass(frozen=True)
class _Made:
    """What a done task stands on."""

    ended_at: datetime
    files: frozenset[tuple[str, str]]  #: names and digests


def needed_by(connection: Connection, results: Sequence[TaskResult]) -> dict[str, list[str]]:
    """What the tasks need whose attempts found inputs lost, by their ids."""
    columns, found = tables.tasks.c, dict[str, list[str]]()
    for part in parts(sorted({task_of(result.attempt) for result in results if result.lost})):
        found |= {
            row.id: row.needs
            for row in connection.execute(select(columns.id, columns.needs).where(columns.id.in_(part)))
        }
    return found


def send_back(
    connection: Connection,
    at: datetime,
    held: Mapping[str, Found],
    needs: Mapping[str, Sequence[str]],
    losers: Sequence[tuple[Found, TaskResult]],
) -> None:
    """Done to pending, for the tasks that made what these attempts found lost; all of them are in `held`.

    Left alone is a task that is not done, and one that has made its files since the attempt was begun.
    """
    makers = [held[need] for found, _ in losers for need in needs[found.id] if held[need].state in DONE]
    made = _made(connection, [str(maker.attempt) for maker in makers])
    began = _began(connection, [result.attempt for _, result in losers])
    back: dict[str, Move] = {}
    for found, result in losers:
        lost = {(artifact.name, artifact.sha256) for artifact in result.lost}
        for need in needs[found.id]:
            maker = held[need]
            old = made.get(str(maker.attempt)) if maker.state in DONE else None
            if need not in back and old and old.ended_at <= began[result.attempt] and lost & old.files:
                names = ", ".join(sorted(name for name, _ in lost & old.files))
                back[need] = _back(maker, names, f"to make {names} again for {found.id}")
    make(connection, at, list(back.values()))


def _back(maker: Found, names: str, detail: str) -> Move:
    """It stands on its own latest attempt again, whatever it had taken over; its tries are counted anew."""
    own = attempt_id(maker.id, maker.epoch) if maker.epoch else None
    values: dict[str, Any] = {"lost": names, "attempt": own, "asked_epoch": maker.epoch}
    return Move(maker, TaskState.PENDING, detail, maker.attempt, values)


def _made(connection: Connection, attempts: Sequence[str]) -> dict[str, _Made]:
    columns, files = tables.attempts.c, tables.artifacts.c
    ended: dict[str, datetime] = {}
    names: dict[str, set[tuple[str, str]]] = {}
    for part in parts(sorted(set(attempts))):
        query = (
            select(columns.id, columns.ended_at, files.name, files.sha256)
            .join(tables.artifacts, files.attempt == columns.id)
            .where(columns.id.in_(part))
        )
        for row in connection.execute(query):
            ended[row.id] = row.ended_at
            names.setdefault(row.id, set()).add((row.name, row.sha256))
    return {attempt: _Made(ended[attempt], frozenset(names[attempt])) for attempt in ended}


def _began(connection: Connection, attempts: Sequence[str]) -> dict[str, datetime]:
    columns, found = tables.attempts.c, dict[str, datetime]()
    for part in parts(sorted(set(attempts))):
        rows = connection.execute(select(columns.id, columns.started_at).where(columns.id.in_(part)))
        found |= {row.id: row.started_at for row in rows}
    return found
