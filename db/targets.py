"""Quoted targets: numbers from elsewhere that results are held against, each with its source."""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from db import tables
from db.engine import Database
from db.filters import PATTERN_SIGNS

#: What makes two of them the same target, at different times.
KEY = ("variant", "target", "metric", "batch", "prompt_tokens", "new_tokens")


@dataclass(frozen=True)
class QuotedTarget:
    """A number of somebody else's for a metric of some variants."""

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
        """Equal for those of which the newest holds."""
        return tuple(getattr(self, name) for name in KEY)


def quoted_targets(database: Database) -> list[QuotedTarget]:
    """All there ever were, by variant, metric and time."""
    columns = tables.targets.c
    wanted = [columns[name] for name in QuotedTarget.__dataclass_fields__]
    order = (columns.variant, columns.target, columns.metric, columns.since, columns.id)
    with database.reading() as connection:
        return [QuotedTarget(**row) for row in connection.execute(select(*wanted).order_by(*order)).mappings()]


def in_force(found: Iterable[QuotedTarget], at: datetime | None = None) -> list[QuotedTarget]:
    """Those that hold at a time, or now: of each key the one that began last."""
    newest: dict[tuple[Any, ...], QuotedTarget] = {}
    for one in sorted(found, key=lambda one: one.since):
        if at is None or one.since <= at:
            newest[one.key] = one
    return sorted(newest.values(), key=lambda one: (one.variant, one.target, one.metric))


def target_for(
    found: Iterable[QuotedTarget],
    *,
    variant: str,
    target: str,
    metric: str,
    batch: int | None = None,
    prompt_tokens: int | None = None,
    new_tokens: int | None = None,
    at: datetime | None = None,
) -> QuotedTarget | None:
    """What a result is held against, at a time or now: the most specific one that fits it, if any does.

    A name goes before a pattern and a longer pattern before a shorter one, then the one that says more of the workload,
    then the one that names the hardware. A target of a certain workload fits no result whose workload is unknown.
    """
    workload = {"batch": batch, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    fitting = [
        one
        for one in in_force(found, at)
        if one.metric == metric
        and one.target in ("", target)
        and all(getattr(one, name) in (None, value) for name, value in workload.items())
        and (one.variant == variant or fnmatchcase(variant, one.variant))
    ]
    return max(fitting, key=_specificity, default=None)


def _specificity(one: QuotedTarget) -> tuple[Any, ...]:
    is_name = not PATTERN_SIGNS & set(one.variant)
    literal = sum(sign not in PATTERN_SIGNS for sign in one.variant)
    said = sum(value is not None for value in (one.batch, one.prompt_tokens, one.new_tokens))
    return is_name, literal, said, one.target != "", one.since


def keep(database: Database, wanted: Collection[QuotedTarget]) -> int:
    """Record targets; one of the same key and time is replaced, and one that holds already is left as it is.

    Returns how many were recorded.
    """
    kept = 0
    with database.writing() as connection:
        for one in wanted:
            if _holds(connection, one):
                continue
            connection.execute(delete(tables.targets).where(*_of_key(one.key), tables.targets.c.since == one.since))
            connection.execute(insert(tables.targets), [asdict(one)])
            kept += 1
    return kept


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
    """Forget the target of exactly this key, with what it was earlier; returns how many there were."""
    key = (variant, target, metric, batch, prompt_tokens, new_tokens)
    with database.writing() as connection:
        return connection.execute(delete(tables.targets).where(*_of_key(key))).rowcount


def _of_key(key: tuple[Any, ...]) -> list[ColumnElement[bool]]:
    return [tables.targets.c[name].is_not_distinct_from(value) for name, value in zip(KEY, key, strict=True)]


def _holds(connection: Connection, one: QuotedTarget) -> bool:
    """Whether the same number of the same source holds from then on, or from before."""
    columns = tables.targets.c
    earlier = select(columns.value, columns.source).where(*_of_key(one.key), columns.since <= one.since)
    newest = connection.execute(earlier.order_by(columns.since.desc(), columns.id.desc()).limit(1)).one_or_none()
    return newest is not None and tuple(newest) == (one.value, one.source)
