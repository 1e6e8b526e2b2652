"""Artifacts that were lost from the store: the tasks that made them run again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from db.schema import tables
from db.schema.filters import IS_BEGIN, IS_END, parts
from db.schema.ids import attempt_id, task_of
from db.writes.attempt_ends import AttemptEnd
from db.writes.transitions import LockedTask, Transition
from jobs.state import DONE, TaskState
from jobs.task import TaskResult

NamedDigest = tuple[str, str]  #: an artifact's name and its sha256


@dataclass(frozen=True)
class Outputs:
    """The artifacts of a done task's attempt."""

    end_event: int  #: number of the event that ended the attempt
    artifacts: frozenset[NamedDigest]


def needs_of(connection: Connection, results: Sequence[TaskResult]) -> dict[str, list[str]]:
    """Return, by task, the tasks that it needs, for the attempts that found inputs lost."""
    columns, needs = tables.tasks.c, dict[str, list[str]]()
    for part in parts(sorted({task_of(result.attempt) for result in results if result.lost})):
        query = select(columns.id, columns.needs).where(columns.id.in_(part))
        needs |= {row.id: row.needs for row in connection.execute(query)}
    return needs


def remaking(
    connection: Connection,
    tasks: Mapping[str, LockedTask],
    needs: Mapping[str, Sequence[str]],
    ends: Sequence[AttemptEnd],
) -> list[Transition]:
    """Return the transitions of the tasks that must run again because these attempts found their artifacts lost.

    All tasks in `needs` are among the locked `tasks`.
    """
    producers = {need: tasks[need] for end in ends for need in needs[end.task.id] if tasks[need].state in DONE}
    outputs = _outputs(connection, [str(producer.attempt) for producer in producers.values()])
    begin_events = _event_numbers(connection, [end.result.attempt for end in ends], IS_BEGIN)
    transitions: dict[str, Transition] = {}
    for end in ends:
        lost = {(artifact.name, artifact.sha256) for artifact in end.result.lost}
        for need in needs[end.task.id]:
            if need in producers and need not in transitions:
                names = lost_names(outputs.get(str(producers[need].attempt)), lost, begin_events[end.result.attempt])
                if names:
                    transitions[need] = _to_pending(producers[need], ", ".join(names), end.task.id)
    return list(transitions.values())


def lost_names(outputs: Outputs | None, lost: Collection[NamedDigest], begin_event: int) -> list[str]:
    """Return the names of the outputs that are among the lost artifacts.

    None are when the outputs were made after the attempt began that found them lost: they were made again since. What
    came first is told by the numbers of the events, for clocks may step back.
    """
    if outputs is None or outputs.end_event > begin_event:
        return []
    return sorted(name for name, _ in outputs.artifacts.intersection(lost))


def _to_pending(producer: LockedTask, names: str, consumer: str) -> Transition:
    """Return to the task's own latest attempt, also from a cache hit, and count its tries anew."""
    latest = attempt_id(producer.id, producer.epoch) if producer.epoch else None
    values: dict[str, Any] = {"lost_artifacts": names, "attempt": latest, "base_epoch": producer.epoch}
    detail = f"to make {names} again for {consumer}"
    return Transition(producer, TaskState.PENDING, detail, producer.attempt, values)


def _outputs(connection: Connection, attempts: Sequence[str]) -> dict[str, Outputs]:
    files, artifacts = tables.artifacts.c, dict[str, set[NamedDigest]]()
    for part in parts(sorted(set(attempts))):
        query = select(files.attempt, files.name, files.sha256).where(files.attempt.in_(part))
        for row in connection.execute(query):
            artifacts.setdefault(row.attempt, set()).add((row.name, row.sha256))
    end_events = _event_numbers(connection, list(artifacts), IS_END)
    return {attempt: Outputs(end_events[attempt], frozenset(artifacts[attempt])) for attempt in artifacts}


def _event_numbers(connection: Connection, attempts: Sequence[str], kind: ColumnElement[bool]) -> dict[str, int]:
    """Return the number of the event that began, or ended, each attempt."""
    events, numbers = tables.events.c, dict[str, int]()
    for part in parts(sorted(set(attempts))):
        tasks = sorted({task_of(attempt) for attempt in part})
        query = select(events.attempt, events.id).where(events.task.in_(tasks), events.attempt.in_(part), kind)
        numbers |= {row.attempt: row.id for row in connection.execute(query)}
    return numbers
