"""Runs: one metric of one workload as one attempt measured it, for deciding whether numbers differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Text, and_, cast, func, literal_column, or_, select

from db.connection.engine import Database
from db.reads import run_filter
from db.reads.identities import SUCCEEDED
from db.reads.run_filter import RunFilter
from db.schema import tables
from db.schema.filters import parts
from db.schema.imported import DIGEST
from db.schema.values import places_of
from jobs.state import DONE, FailureKind
from jobs.variants import AXES

#: The newest so many measurements are read where there are more: that is some tenths of a second.
MOST = 4000
DISTURBED = "disturbed"  #: what a context calls it when something else disturbed a measurement
VARIABLES = "variables"  #: what a context calls the environment variables that may change its numbers
OF_CONTEXT = ("new_tokens", "evaluation")  #: parts of a workload that only its context has
NOT_SET = "not set"
Variables = tuple[tuple[str, str], ...]  #: names and values, sorted
HOST = "cpu"  #: the kind of devices that are all the same cores


@dataclass(frozen=True)
class MeasuredRun:
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
    workload: tuple[tuple[str, int | str], ...]  #: batch, prompt_tokens and so on, those that there are
    median: float
    place: str  #: the serials of its devices, or what stands for them where they have none
    node: str
    devices: tuple[str, ...]  #: as `mi300x:3`
    digest: str  #: of all that its numbers follow from, but for driver and machine
    driver: str
    at: datetime
    is_good: bool  #: its attempt succeeded, or its gate let it pass in the end
    epoch: int = 1
    variables: Variables | None = None  #: that may change its numbers, by name; None: they were not recorded
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)  #: its context

    @property
    def series_key(self) -> tuple[Any, ...]:
        """The key of the runs that measured the same of the same variant in the same place."""
        return (self.variant, self.target, self.metric, self.workload, self.place)

    @property
    def is_imported(self) -> bool:
        """Whether it was imported from a file: then it has no program, and only the file tells where it ran."""
        return self.digest.startswith(DIGEST)

    @property
    def program(self) -> tuple[str, str, Variables | None]:
        """The key of the runs that differ in nothing that their numbers depend on."""
        return (self.digest, self.driver, self.variables)

    def has_conditions_of(self, other: "MeasuredRun") -> bool:
        """Whether both were measured under the same environment variables, as far as is recorded."""
        return self.variables is None or other.variables is None or self.variables == other.variables


def runs(database: Database, chosen: RunFilter, most: int = MOST) -> list[MeasuredRun]:
    """Return the chosen runs, newest first: at most `most`, in equal shares for the metrics."""
    with database.reading() as connection:
        wanted = run_filter.wanted(connection, chosen)
        metrics = [metric for metric in chosen.metrics if _is_measured(connection, metric)]
        if wanted is None or not metrics:
            return []
        share, is_few = max(most // len(metrics), 1), run_filter.is_few(connection, chosen, wanted)
        query = _columns(chosen).where(*wanted).order_by(*_newest_first(is_few=is_few)).limit(share)
        rows = [
            row
            for metric in metrics  # one by one: an index has each in order
            for row in connection.execute(query.where(_is_of_metric(connection, metric, is_few=is_few)))
        ]
    measured = [_run(row) for row in rows]
    return measured if chosen.disturbed else [run for run in measured if not run.facts.get(DISTURBED)]


def _is_measured(connection: Connection, metric: str) -> bool:
    """Return whether a metric was ever measured."""
    columns = tables.measurements.c
    return connection.execute(select(columns.id).where(columns.metric == metric).limit(1)).first() is not None


def _is_of_metric(connection: Connection, metric: str, *, is_few: bool) -> ColumnElement[bool]:
    """Return the condition of a metric; for few runs, SQLite is told that most rows match.

    SQLite keeps no counts, and would otherwise first scan all measurements of the metric."""
    condition = tables.measurements.c.metric == metric
    if is_few and connection.dialect.name == "sqlite":
        return func.likelihood(condition, literal_column("0.9"))
    return condition


def _newest_first(*, is_few: bool) -> list[ColumnElement[Any]]:
    """Return the order of runs; few are selected first, then sorted, in an order that no index has.

    Given the order of an index, SQLite would scan all of that index."""
    by_id: list[ColumnElement[Any]] = [tables.measurements.c.id.desc()]
    return [*([tables.attempts.c.ended_at.desc()] if is_few else []), *by_id, tables.cells.c.position]


def identities_of(database: Database, attempts: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return, by attempt, the identity that its digest is of; attempts from before these were stored are left out."""
    columns, identities = tables.attempts.c, {}
    with database.reading() as connection:
        for part in parts(sorted(set(attempts))):
            for row in connection.execute(select(columns.id, columns.identity).where(columns.id.in_(part))):
                if row.identity:
                    identities[row.id] = row.identity
    return identities


def workload_of(batch: Any, prompt_tokens: Any, facts: Mapping[str, Any]) -> tuple[tuple[str, int | str], ...]:
    """Return the known sizes of what was measured, or the task that was answered."""
    sizes = {"batch": batch, "prompt_tokens": prompt_tokens, **{name: facts.get(name) for name in OF_CONTEXT}}
    return tuple((name, value) for name, value in sizes.items() if value is not None)


def _columns(chosen: RunFilter) -> Select[Any]:
    measurements, attempts, tasks, cells = (
        table.c for table in (tables.measurements, tables.attempts, tables.tasks, tables.cells)
    )
    link = attempts.task == tasks.id
    if chosen.job is not None:
        link = or_(link, attempts.id == tasks.attempt)  # or the attempt that a cached task reuses
    numbers = (measurements[name] for name in ("attempt", "metric", "unit", "median", "batch", "prompt_tokens"))
    return (
        select(
            *numbers,
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


def _run(row: Any) -> MeasuredRun:
    """Return a run from the columns of `_columns`, by position: lookups by name would take longer than all the rest."""
    attempt, metric, unit, median, batch, prompt_tokens, context, epoch, node, digest, *others = row
    ended_at, outcome, failure_kind, state, places, task, job, model, variant, target, *axes = others
    facts = json.loads(context)
    place, devices = placed(places)
    return MeasuredRun(
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
        is_good=outcome == SUCCEEDED or (failure_kind == FailureKind.INCONCLUSIVE and state in DONE),
        epoch=epoch,
        variables=variables_of(facts),
        facts=facts,
    )


def driver_of(facts: Mapping[str, Any]) -> str:
    """Return the drivers that a context names; empty if it names none."""
    drivers = (facts.get("machine") or {}).get("drivers") or {}
    return ", ".join(f"{name} {version}" for name, version in sorted(drivers.items()))


def variables_of(facts: Mapping[str, Any]) -> Variables | None:
    """Return the environment variables that a context names, sorted; None if it says nothing of them."""
    variables = facts.get(VARIABLES)
    return None if variables is None else tuple(sorted(variables.items()))


def differing_variables(old: Variables | None, new: Variables | None) -> list[str]:
    """Say which environment variables differ: `HSA_ENABLE_SDMA not set to 0`."""
    if old is None or new is None:
        return []
    before, after = dict(old), dict(new)
    return [
        f"{name} {before.get(name, NOT_SET)} to {after.get(name, NOT_SET)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


@lru_cache(maxsize=1024)
def axes_among(*values: Any) -> Mapping[str, Any]:
    """Return axes by name from the values of AXES, in that order; cached, since many runs share few variants."""
    return {name: kind(value) for (name, kind), value in zip(AXES.items(), values, strict=True)}


@lru_cache(maxsize=1024)
def placed(places: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of a place, which identifies it, and its devices' names; cached, since there are few places."""
    stored = places_of(json.loads(places))
    named = [(place.node, device) for place in stored for device in place.devices]
    known = [
        device.serial or (node if device.kind == HOST else f"{node}/{device.kind}:{device.index}")
        for node, device in named
    ]
    devices = tuple(f"{device.kind}:{device.index}" for _, device in named)
    return "+".join(dict.fromkeys(known or [place.node for place in stored])), devices
