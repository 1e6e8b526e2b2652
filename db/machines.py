"""Nodes and their devices, for people."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, RowMapping, select, true

from db import tables
from db.engine import Database
from db.values import places_of
from jobs.errors import NotFound
from jobs.state import ACTIVE
from jobs.task import Check


@dataclass(frozen=True)
class DeviceRow:
    """A device as its node last told of it."""

    kind: str
    index: int
    serial: str
    memory_bytes: int  #: 0: not known
    memory_used_bytes: int | None
    quarantined_why: str | None  #: None: it may be used
    quarantined_at: datetime | None


@dataclass(frozen=True)
class NodeRow:
    """A node as it last told of itself."""

    id: str
    host: str
    address: str
    cpus: int
    memory_bytes: int
    versions: Mapping[str, str]
    first_seen_at: datetime
    seen_at: datetime
    is_up: bool
    closed: str | None  #: draining, handing_back or quarantined
    closed_why: str | None
    closed_at: datetime | None
    refuses_why: str | None  #: why it takes nothing now, as far as it or the head can tell by itself
    checks: tuple[Check, ...]
    toolchains: Mapping[str, str]  #: by digest, why one can't be used there; empty: it can
    devices: tuple[DeviceRow, ...]  #: by kind and index


def nodes(database: Database) -> list[NodeRow]:
    """Every node that a head has seen, by name."""
    return _nodes(database, true())


def node(database: Database, name: str) -> NodeRow:
    """One node; raises NotFound."""
    found = _nodes(database, tables.nodes.c.id == name)
    if not found:
        raise NotFound("node", name)
    return found[0]


def running(database: Database) -> Mapping[str, int]:
    """How many attempts run on each node."""
    tasks, attempts = tables.tasks.c, tables.attempts.c
    query = select(attempts.places).join(tables.tasks, tasks.attempt == attempts.id)
    with database.reading() as connection:
        found = connection.scalars(query.where(tasks.state.in_(sorted(ACTIVE)))).all()
    return Counter(place.node for places in found for place in places_of(places))


def _nodes(database: Database, condition: ColumnElement[bool]) -> list[NodeRow]:
    columns = tables.devices.c
    with database.reading() as connection:
        found = connection.execute(select(tables.nodes).where(condition).order_by(tables.nodes.c.id)).all()
        query = select(tables.devices).where(columns.node.in_([row.id for row in found]))
        devices: dict[str, list[DeviceRow]] = defaultdict(list)
        for device in connection.execute(query.order_by(columns.kind, columns.index)).mappings():
            told = {name: value for name, value in device.items() if name != "node"}
            devices[device["node"]].append(DeviceRow(**told))
    return [_node(row._mapping, devices[row.id]) for row in found]


def _node(row: RowMapping, devices: list[DeviceRow]) -> NodeRow:
    checks = tuple(Check(**check) for check in row["checks"])
    return NodeRow(**{**row, "checks": checks, "devices": tuple(devices)})
