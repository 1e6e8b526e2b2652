"""Invariants of the stored rows, and the check of them: `haloctl db check`.

Each rule reads in one pass, ordered by the database, and keeps only what runs at one moment in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Select, String, and_, case, cast, exists, func, not_, or_, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import IS_BEGIN, IS_END
from db.schema.ids import attempt_id
from db.schema.values import places_of
from db.writes.pruning import pruned_jobs
from jobs.state import ACTIVE, DONE, TRANSITIONS, WITHOUT_RESULTS, TaskState

AT_ONCE = 1000  #: rows in memory

MOVES: Mapping[str, frozenset[TaskState]] = {str(was): goals for was, goals in TRANSITIONS.items()}


@dataclass(frozen=True)
class Violation:
    """A stored state that breaks an invariant."""

    about: str  #: the id of a task or an attempt
    message: str


@dataclass(frozen=True)
class Extent:
    """The numbers of rows that were checked."""

    tasks: int
    attempts: int
    events: int


Rule = Callable[[Connection], Iterator[Violation]]


def violations(database: Database) -> Iterator[Violation]:
    """Yield every violation in one snapshot of the database, as it is detected."""
    with database.reading() as connection:
        for rule in RULES:
            yield from rule(connection)


def extent(database: Database) -> Extent:
    """Return the numbers of rows to check."""
    with database.reading() as connection:
        counts = [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (tables.tasks, tables.attempts, tables.events)
        ]
    return Extent(*counts)


def _stream(connection: Connection, query: Select[Any]) -> Iterable[Any]:
    return connection.execution_options(yield_per=AT_ONCE).execute(query)


def lives(connection: Connection) -> Iterator[Violation]:
    """Check that a task's events lead from pending to its state, by valid transitions, one epoch after another.

    Pruned jobs have lost most of theirs.
    """
    tasks, events = tables.tasks.c, tables.events.c
    query = (
        select(
            *(tasks.id, tasks.state, tasks.epoch, tasks.lost_artifacts, events.id.label("event")),
            *(events.attempt, events.from_state, events.to_state),
        )
        .join(tables.events, events.task == tasks.id, isouter=True)
        .where(tasks.job.not_in(pruned_jobs()))
        .order_by(tasks.id, events.id)
    )
    for task, rows in groupby(_stream(connection, query), key=attrgetter("id")):
        yield from _life(task, rows)


def _life(task: str, rows: Iterable[Any]) -> Iterator[Violation]:
    state, epoch, is_lost, row = str(TaskState.PENDING), 0, False, None
    for row in rows:
        if row.event is None:
            break
        if row.from_state != state:
            yield Violation(task, f"event {row.event} is from {row.from_state}, and the task was {state}")
        if row.to_state not in MOVES.get(row.from_state, ()):
            yield Violation(task, f"event {row.event} is from {row.from_state} to {row.to_state}, which is no move")
        if row.to_state == TaskState.RUNNING:
            epoch += 1
        if _begins_or_ends(row) and row.attempt != attempt_id(task, epoch):
            yield Violation(task, f"event {row.event} is about {row.attempt}; epoch {epoch} was its turn")
        if row.from_state in DONE and not _lets_go(row, attempt_id(task, epoch)):
            yield Violation(task, f"event {row.event} lets go of {row.attempt}, which is not what it stood on")
        is_lost = row.from_state in DONE or (is_lost and row.to_state not in DONE)
        state = row.to_state
    if row is not None and row.state != state:
        yield Violation(task, f"it is {row.state}, and its last event says {state}")
    if row is not None and row.epoch != epoch:
        yield Violation(task, f"its epoch is {row.epoch}, and {epoch} attempts were begun")
    if row is not None and is_lost != (row.lost_artifacts is not None):
        yield Violation(task, f"it makes {row.lost_artifacts or 'nothing'} again, and its events say something else")


def _lets_go(row: Any, attempt: str) -> bool:
    """Return whether a done task that must run again had its outputs from the event's attempt."""
    return row.attempt is not None and (row.from_state == TaskState.CACHED or row.attempt == attempt)


def _begins_or_ends(row: Any) -> bool:
    return row.to_state == TaskState.RUNNING or (row.from_state in ACTIVE and row.to_state not in ACTIVE)


def attempts_begin_and_end_once(connection: Connection) -> Iterator[Violation]:
    """Check that an attempt is begun once, and has ended at most once; of pruned jobs, that successes have ended."""
    columns, events = tables.attempts.c, tables.events.c
    counts = (
        select(
            events.attempt,
            func.sum(case((IS_BEGIN, 1), else_=0)).label("begins"),
            func.sum(case((IS_END, 1), else_=0)).label("ends"),
        )
        .where(events.attempt.is_not(None))
        .group_by(events.attempt)
        .subquery()
    )
    begins, ends = func.coalesce(counts.c.begins, 0), func.coalesce(counts.c.ends, 0)
    is_pruned = columns.task.in_(_pruned_tasks())
    has_wrong_events = or_(begins != 1, ends != case((columns.ended_at.is_(None), 0), else_=1))
    query = (
        select(columns.id, columns.ended_at, begins.label("begins"), ends.label("ends"))
        .join(counts, counts.c.attempt == columns.id, isouter=True)
        .where(or_(and_(~is_pruned, has_wrong_events), and_(is_pruned, columns.outcome == "succeeded", ends != 1)))
        .order_by(columns.id)
    )
    for row in _stream(connection, query):
        ended = "has not ended" if row.ended_at is None else "has ended"
        yield Violation(row.id, f"it {ended}, and events begin it {row.begins} times and end it {row.ends} times")


def _pruned_tasks() -> Select[tuple[str]]:
    return select(tables.tasks.c.id).where(tables.tasks.c.job.in_(pruned_jobs()))


def tasks_stand_on_their_attempts(connection: Connection) -> Iterator[Violation]:
    """Check that a task's state matches its attempt's, and that none of its other attempts runs or has succeeded.

    Attempts that succeeded and were dropped because their files were lost are excepted.
    """
    tasks, columns, events = tables.tasks.c, tables.attempts.c, tables.events.c
    lets_go = and_(events.from_state.in_(sorted(DONE)), events.to_state == TaskState.PENDING)
    was_let_go = or_(
        exists().where(events.task == columns.task, events.attempt == columns.id, lets_go),
        columns.task.in_(_pruned_tasks()),  # whose events of that kind are gone
    )
    query = (
        select(columns.id, columns.ended_at, tasks.state, tasks.attempt)
        .join(tables.tasks, tasks.id == columns.task)
        .where(or_(columns.ended_at.is_(None), and_(columns.outcome == "succeeded", not_(was_let_go))))
        .order_by(columns.id)
    )
    for row in _stream(connection, query):
        expected = ACTIVE if row.ended_at is None else {TaskState.SUCCEEDED}
        if row.attempt != row.id or row.state not in expected:
            came_to = "runs" if row.ended_at is None else "has succeeded"
            yield Violation(row.id, f"it {came_to}, and its task is {row.state} on {row.attempt}")
    yield from _baseless(connection)


def _baseless(connection: Connection) -> Iterator[Violation]:
    tasks, columns = tables.tasks.c, tables.attempts.c
    done = (TaskState.SUCCEEDED, TaskState.CACHED)
    query = (
        select(tasks.id, tasks.state, tasks.attempt)
        .join(tables.attempts, columns.id == tasks.attempt, isouter=True)
        .where(
            or_(
                and_(tasks.state.in_(done), func.coalesce(columns.outcome, "") != "succeeded"),
                and_(tasks.state.in_(sorted(ACTIVE)), or_(columns.id.is_(None), columns.ended_at.is_not(None))),
            )
        )
        .order_by(tasks.id)
    )
    for row in _stream(connection, query):
        yield Violation(row.id, f"it is {row.state} on {row.attempt}, which is not so")


def results_are_stored_once(connection: Connection) -> Iterator[Violation]:
    """Check that attempts which run, were lost or cancelled have no results, and that none is stored twice."""
    columns, numbers, files = tables.attempts.c, tables.measurements.c, tables.artifacts.c
    is_lost = or_(columns.outcome == "cancelled", columns.failure_kind.in_(sorted(WITHOUT_RESULTS)))
    for table, wrong in (
        (tables.artifacts, or_(columns.ended_at.is_(None), and_(is_lost, files.kind != "log"))),
        (tables.measurements, or_(columns.ended_at.is_(None), is_lost)),
    ):
        early = select(columns.id, columns.ended_at, columns.failure_kind)
        early = early.join(table, table.c.attempt == columns.id).where(wrong).distinct().order_by(columns.id)
        for row in _stream(connection, early):
            how = "has not ended" if row.ended_at is None else f"ended as {row.failure_kind}"
            yield Violation(row.id, f"it has {table.name}, and {how}")
    same = (numbers.attempt, numbers.metric, cast(numbers.context, String), cast(numbers.samples, String))
    twice = select(numbers.attempt, numbers.metric).group_by(*same).having(func.count() > 1)
    for row in _stream(connection, twice.order_by(numbers.attempt, numbers.metric)):
        yield Violation(row.attempt, f"{row.metric} is stored more than once")


def devices_are_held_by_one(connection: Connection) -> Iterator[Violation]:
    """Check that a device is held by one attempt at a time, from its begin to its end."""
    events, columns = tables.events.c, tables.attempts.c
    query = (
        select(events.to_state, events.attempt, columns.places)
        .join(tables.attempts, columns.id == events.attempt)
        .where(or_(IS_BEGIN, IS_END))
        .order_by(events.id)
    )
    held: dict[tuple[str, str, int], str] = {}
    for row in _stream(connection, query):
        for device in _devices(row.places):
            holder = held.get(device)
            if row.to_state == TaskState.RUNNING:
                if holder is not None and holder != row.attempt:
                    yield Violation(row.attempt, f"it held {_named(device)} while {holder} did")
                held[device] = row.attempt
            elif holder == row.attempt:
                del held[device]


def _devices(places: Any) -> list[tuple[str, str, int]]:
    return [(place.node, device.kind, device.index) for place in places_of(places) for device in place.devices]


def _named(device: tuple[str, str, int]) -> str:
    node, kind, index = device
    return f"{kind} {index} of {node}"


def nothing_starts_where_it_must_not(connection: Connection) -> Iterator[Violation]:
    """Check that nothing was begun on a node or device after it was cordoned or quarantined, if it still is."""
    nodes, devices, events = tables.nodes.c, tables.devices.c, tables.events.c
    unusable_after: dict[Any, int] = {
        row.id: row.cordoned_after
        for row in connection.execute(select(nodes.id, nodes.cordoned_after).where(nodes.cordon.is_not(None)))
    }
    quarantined = select(devices.node, devices.kind, devices.index.label("number"), devices.quarantined_after)
    for row in connection.execute(quarantined.where(devices.quarantine_reason.is_not(None))):
        unusable_after[row.node, row.kind, row.number] = row.quarantined_after
    if not unusable_after:
        return
    query = (
        select(events.id, events.attempt, tables.attempts.c.places)
        .join(tables.attempts, tables.attempts.c.id == events.attempt)
        .where(events.id > min(unusable_after.values()), IS_BEGIN)
        .order_by(events.id)
    )
    for row in _stream(connection, query):
        yield from _misplaced(row, unusable_after)


def _misplaced(begin: Any, unusable_after: Mapping[Any, int]) -> Iterator[Violation]:
    used: dict[Any, str] = {place.node: f"node {place.node}" for place in places_of(begin.places)}
    used |= {device: _named(device) for device in _devices(begin.places)}
    for key, name in used.items():
        if key in unusable_after and begin.id > unusable_after[key]:
            yield Violation(begin.attempt, f"it was begun on {name}, which was taken out of use before")


#: The invariants, in the order in which they are checked.
RULES: tuple[Rule, ...] = (
    lives,
    attempts_begin_and_end_once,
    tasks_stand_on_their_attempts,
    results_are_stored_once,
    devices_are_held_by_one,
    nothing_starts_where_it_must_not,
)
