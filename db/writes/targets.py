"""Quoted targets: published numbers that results are compared with, each with its source."""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import PATTERN_SIGNS
from db.writes import changes
from db.writes.changes import ChangeAction

#: The fields that identify a target over time.
KEY = ("variant", "target", "metric", "batch", "prompt_tokens", "new_tokens")


@dataclass(frozen=True)
class QuotedTarget:
    """A number from elsewhere for a metric of some variants."""

    variant: str  #: a name, or a shell-style pattern
    target: str  #: the hardware; empty: any
    metric: str
    batch: int | None  #: the workload; none: any
    prompt_tokens: int | None
    new_tokens: int | None
    value: float
    unit: str
    source: str  #: where it was read
    recorded_by: str
    since: datetime  #: from when it holds, until another one of the same key does

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of the targets of which the newest holds."""
        return tuple(getattr(self, name) for name in KEY)


def quoted_targets(database: Database) -> list[QuotedTarget]:
    """Return all targets, superseded ones too, by variant, metric and time."""
    columns = tables.targets.c
    wanted = [columns[name] for name in QuotedTarget.__dataclass_fields__]
    order = (columns.variant, columns.target, columns.metric, columns.since, columns.id)
    with database.reading() as connection:
        return [QuotedTarget(**row) for row in connection.execute(select(*wanted).order_by(*order)).mappings()]


def in_force(targets: Iterable[QuotedTarget], at: datetime | None = None) -> list[QuotedTarget]:
    """Return the targets that hold at a time, or now: of each key the latest."""
    newest: dict[tuple[Any, ...], QuotedTarget] = {}
    for target in sorted(targets, key=lambda target: target.since):
        if at is None or target.since <= at:
            newest[target.key] = target
    return sorted(newest.values(), key=lambda target: (target.variant, target.target, target.metric))


def target_for(
    targets: Iterable[QuotedTarget],
    *,
    variant: str,
    target: str,
    metric: str,
    batch: int | None = None,
    prompt_tokens: int | None = None,
    new_tokens: int | None = None,
    at: datetime | None = None,
) -> QuotedTarget | None:
    """Return the most specific target that applies to a result at a time, or now; None if none does.

    A name goes before a pattern and a longer pattern before a shorter one, then the target with more workload fields,
    then the one that names the hardware. A target for a workload does not apply to results of unknown workload.
    """
    workload = {"batch": batch, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    applicable = [
        quoted
        for quoted in in_force(targets, at)
        if quoted.metric == metric
        and quoted.target in ("", target)
        and all(getattr(quoted, name) in (None, value) for name, value in workload.items())
        and (quoted.variant == variant or fnmatchcase(variant, quoted.variant))
    ]
    return max(applicable, key=_specificity, default=None)


def _specificity(target: QuotedTarget) -> tuple[Any, ...]:
    is_name = not PATTERN_SIGNS & set(target.variant)
    literal = sum(sign not in PATTERN_SIGNS for sign in target.variant)
    stated = sum(value is not None for value in (target.batch, target.prompt_tokens, target.new_tokens))
    return is_name, literal, stated, target.target != "", target.since


def keep(database: Database, wanted: Collection[QuotedTarget]) -> int:
    """Record targets; one with the same key and time is replaced, and one that holds already is skipped.

    Returns how many were recorded.
    """
    recorded = 0
    with database.writing() as connection:
        for target in wanted:
            if _holds(connection, target):
                continue
            connection.execute(
                delete(tables.targets).where(*_of_key(target.key), tables.targets.c.since == target.since)
            )
            connection.execute(insert(tables.targets), [asdict(target)])
            detail = f"{target.value:g} {target.unit}, {target.source}"
            changes.record(connection, ChangeAction.SET_TARGET, f"{target.variant} {target.metric}", detail)
            recorded += 1
    return recorded


def remove(
    database: Database,
    *,
    variant: str,
    target: str,
    metric: str,
    batch: int | None = None,
    prompt_tokens: int | None = None,
    new_tokens: int | None = None,
) -> int:
    """Delete all targets of exactly this key, earlier ones too; returns how many there were."""
    key = (variant, target, metric, batch, prompt_tokens, new_tokens)
    with database.writing() as connection:
        removed = connection.execute(delete(tables.targets).where(*_of_key(key))).rowcount
        if removed:
            changes.record(connection, ChangeAction.REMOVE_TARGET, f"{variant} {metric}")
        return removed


def _of_key(key: tuple[Any, ...]) -> list[ColumnElement[bool]]:
    return [tables.targets.c[name].is_not_distinct_from(value) for name, value in zip(KEY, key, strict=True)]


def _holds(connection: Connection, target: QuotedTarget) -> bool:
    """Return whether the same number from the same source already holds at its time."""
    columns = tables.targets.c
    earlier = select(columns.value, columns.source).where(*_of_key(target.key), columns.since <= target.since)
    newest = connection.execute(earlier.order_by(columns.since.desc(), columns.id.desc()).limit(1)).one_or_none()
    return newest is not None and tuple(newest) == (target.value, target.source)
