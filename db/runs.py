"""Runs: one metric of one workload as one attempt measured it, for deciding whether numbers differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Text, and_, cast, func, literal_column, or_, select

from db import run_conditions, tables
from db.engine import Database
from db.filters import parts
from db.identities import SUCCEEDED
from db.imported import DIGEST
from db.values import places_of
from jobs.state import DONE, FailureKind
from jobs.variants import AXES

#: The newest so many measurements are read where there are more: that is some tenths of a second.
MOST = 4000
DISTURBED = "disturbed"  #: what a context calls it when something else disturbed a measurement
HOST = "cpu"  #: the kind of devices that are all the same cores


@dataclass(frozen=True)
class Chosen:
    """Which runs are meant; what is left out does not matter."""

    metrics: tuple[str, ...]
    job: str | None = None  #: its name, or the start of its id
    model: str | None = None  #: names or patterns
    variant: str | None = None
    target: str | None = None
    toolchain: str | None = None
    engine: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    result: str | None = None  #: a task's or an attempt's id, or the start of it
    tasks: tuple[str, ...] | None = None  #: their whole ids
    variants: tuple[str, ...] | None = None  #: their whole names
    node: str | None = None
    batch: int | None = None
    prompt_tokens: int | None = None
    disturbed: bool = False  #: also what something else disturbed

    @property
    def names_variants(self) -> bool:
        """Whether it asks for some of the variants."""
        return any((self.model, self.variant, self.toolchain, self.engine, self.variants))


@dataclass(frozen=True)
class Run:
    """The median of one metric of one workload in one attempt."""

    attempt: str
    task: str
    job: str
    model: str
    variant: str
    target: str
    axes: Mapping[str, Any]
    metric: str
    unit: str
    workload: tuple[tuple[str, int], ...]  #: batch, prompt_tokens and so on, those that there are
    median: float
    place: str  #: the serials of its devices, or what stands for them where they have none
    node: str
    devices: tuple[str, ...]  #: as `mi300x:3`
    digest: str  #: of all that its numbers follow from, but for driver and machine
    driver: str
    at: datetime
    is_good: bool  #: its attempt succeeded, or its gate let it pass in the end
    epoch: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)  #: its context

    @property
    def bench(self) -> tuple[Any, ...]:
        """Equal for what is measured in the same way of the same variant in the same place."""
        return (self.variant, self.target, self.metric, self.workload, self.place)

    @property
    def is_imported(self) -> bool:
        """Whether somebody else's file says so: it has no program, and where it ran is only what was said."""
        return self.digest.startswith(DIGEST)

    @property
    def program(self) -> tuple[str, str]:
        """Equal for runs between which nothing changed that numbers follow from."""
        return (self.digest, self.driver)


def runs(database: Database, chosen: Chosen, most: int = MOST) -> list[Run]:
    """Newest first, of each metric an equal share of at most so many."""
    with database.reading() as connection:
        wanted = run_conditions.wanted(connection, chosen)
        metrics = [metric for metric in chosen.metrics if _is_measured(connection, metric)]
        if wanted is None or not metrics:
            return []
        share, is_few = max(most // len(metrics), 1), run_conditions.is_few(connection, chosen, wanted)
        query = _columns(chosen).where(*wanted).order_by(*_newest_first(is_few=is_few)).limit(share)
        rows = [
            row
            for metric in metrics  # one by one: an index has each in order
            for row in connection.execute(query.where(_is_of_metric(connection, metric, is_few=is_few)))
        ]
    found = [_run(row) for row in rows]
    return found if chosen.disturbed else [run for run in found if not run.facts.get(DISTURBED)]


def _is_measured(connection: Connection, metric: str) -> bool:
    """Whether it ever was."""
    columns = tables.measurements.c
    return connection.execute(select(columns.id).where(columns.metric == metric).limit(1)).first() is not None


def _is_of_metric(connection: Connection, metric: str, *, is_few: bool) -> ColumnElement[bool]:
    """Of few, SQLite is told that most pass: it keeps no counts, and would go through all that the metric has first."""
    found = tables.measurements.c.metric == metric
    if is_few and connection.dialect.name == "sqlite":
        return func.likelihood(found, literal_column("0.9"))
    return found


def _newest_first(*, is_few: bool) -> list[ColumnElement[Any]]:
    """Few are found first and sorted then: offered an order that an index has, SQLite would go through all of that."""
    by_id: list[ColumnElement[Any]] = [tables.measurements.c.id.desc()]
    return [*([tables.attempts.c.ended_at.desc()] if is_few else []), *by_id, tables.cells.c.position]


def identities_of(database: Database, attempts: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """By attempt, what its digest is of; those from before that was kept are left out."""
    columns, found = tables.attempts.c, {}
    with database.reading() as connection:
        for part in parts(sorted(set(attempts))):
            for row in connection.execute(select(columns.id, columns.identity).where(columns.id.in_(part))):
                if row.identity:
                    found[row.id] = row.identity
    return found


def workload_of(batch: Any, prompt_tokens: Any, facts: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """The sizes of what was measured, those that there are."""
    sizes = {"batch": batch, "prompt_tokens": prompt_tokens, "new_tokens": facts.get("new_tokens")}
    return tuple((name, value) for name, value in sizes.items() if value is not None)


def _columns(chosen: Chosen) -> Select[Any]:
    measurements, attempts, tasks, cells = (
        table.c for table in (tables.measurements, tables.attempts, tables.tasks, tables.cells)
    )
    own = attempts.task == tasks.id
    link = own if chosen.job is None else or_(own, attempts.id == tasks.attempt)  # or what a task took over
    told = (measurements[name] for name in ("attempt", "metric", "unit", "median", "batch", "prompt_tokens"))
    return (
        select(
            *told,
            cast(measurements.context, Text).label("context"),
            attempts.epoch,
            attempts.node,
            attempts.digest,
            attempts.ended_at,
            attempts.outcome,
            attempts.failure_kind,
            tasks.state,
            cast(attempts.places, Text).label("places"),
            tasks.id.label("task"),
            tasks.job,
            cells.model,
            cells.variant,
            cells.target,
            *(cells[name] for name in AXES),
        )
        .select_from(tables.measurements)
        .join(tables.attempts, attempts.id == measurements.attempt)
        .join(tables.tasks, link)
        .join(tables.cells, and_(cells.task == tasks.id, cells.is_first))
    )


def _run(row: Any) -> Run:
    """From the columns of `_columns`; names are looked up in rows for longer than all else takes."""
    attempt, metric, unit, median, batch, prompt_tokens, context, epoch, node, digest, *others = row
    ended_at, outcome, failure_kind, state, places, task, job, model, variant, target, *axes = others
    facts = json.loads(context)
    place, devices = placed(places)
    return Run(
        attempt=attempt,
        task=task,
        job=job,
        model=model,
        variant=variant,
        target=target,
        axes=axes_among(*axes),
        metric=metric,
        unit=unit,
        workload=workload_of(batch, prompt_tokens, facts),
        median=median,
        place=place or node,
        node=node,
        devices=devices,
        digest=digest,
        driver=driver_of(facts),
        at=ended_at,
        is_good=outcome == SUCCEEDED or (failure_kind == FailureKind.UNSURE and state in DONE),
        epoch=epoch,
        facts=facts,
    )


def driver_of(facts: Mapping[str, Any]) -> str:
    """The drivers that a context names; empty where it names none."""
    drivers = (facts.get("machine") or {}).get("drivers") or {}
    return ", ".join(f"{name} {version}" for name, version in sorted(drivers.items()))


@lru_cache(maxsize=1024)
def axes_among(*values: Any) -> Mapping[str, Any]:
    """From the columns of AXES in their order: there are few variants, and many runs of each."""
    return {name: kind(value) for (name, kind), value in zip(AXES.items(), values, strict=True)}


@lru_cache(maxsize=1024)
def placed(places: str) -> tuple[str, tuple[str, ...]]:
    """The place that a run is told apart by, and its devices' names; there are few of them."""
    found = places_of(json.loads(places))
    named = [(place.node, device) for place in found for device in place.devices]
    known = [
        device.serial or (node if device.kind == HOST else f"{node}/{device.kind}:{device.index}")
        for node, device in named
    ]
    devices = tuple(f"{device.kind}:{device.index}" for _, device in named)
    return "+".join(dict.fromkeys(known or [place.node for place in found])), devices
