"""Nodes and their devices, as commands and reports show them."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import ColumnElement, RowMapping, select, true

from db.connection.engine import Database
from db.schema import tables
from db.schema.values import places_of
from jobs.errors import NotFound
from jobs.state import ACTIVE
from jobs.task import Check


@dataclass(frozen=True)
class DeviceRow:
    """A device as its node last reported it."""

    kind: str
    index: int
    serial: str
    memory_bytes: int  #: 0: not known
    memory_used_bytes: int | None
    quarantine_reason: str | None  #: None: it may be used
    quarantined_at: datetime | None


@dataclass(frozen=True)
class NodeRow:
    """A node as it last reported itself."""

    id: str
    host: str
    address: str
    cpus: int
    memory_bytes: int
    versions: Mapping[str, str]
    first_seen_at: datetime
    last_seen_at: datetime
    is_up: bool
    cordon: str | None  #: draining, requeuing or quarantined
    cordon_reason: str | None
    cordoned_at: datetime | None
    not_ready_reason: str | None  #: why it takes nothing now, as far as it or the head can tell by itself
    checks: tuple[Check, ...]
    toolchains: Mapping[str, str]  #: by digest, why one can't be used there; empty: it can
    devices: tuple[DeviceRow, ...]  #: by kind and index


DEVICE_COLUMNS = [tables.devices.c[field.name] for field in fields(DeviceRow)]
NODE_COLUMNS = [tables.nodes.c[field.name] for field in fields(NodeRow) if field.name != "devices"]


def nodes(database: Database) -> list[NodeRow]:
    """Return every node that a head has seen, by name."""
    return _nodes(database, true())


def node(database: Database, name: str) -> NodeRow:
    """Return a node; raises NotFound."""
    rows = _nodes(database, tables.nodes.c.id == name)
    if not rows:
        raise NotFound("node", name)
    return rows[0]


def running_attempts(database: Database) -> Mapping[str, int]:
    """Return the number of attempts that run on each node."""
    tasks, attempts = tables.tasks.c, tables.attempts.c
    query = select(attempts.places).join(tables.tasks, tasks.attempt == attempts.id)
    with database.reading() as connection:
        stored = connection.scalars(query.where(tasks.state.in_(sorted(ACTIVE)))).all()
    return Counter(place.node for places in stored for place in places_of(places))


def _nodes(database: Database, condition: ColumnElement[bool]) -> list[NodeRow]:
    columns = tables.devices.c
    with database.reading() as connection:
        rows = connection.execute(select(*NODE_COLUMNS).where(condition).order_by(tables.nodes.c.id)).all()
        query = select(columns.node, *DEVICE_COLUMNS).where(columns.node.in_([row.id for row in rows]))
        devices: dict[str, list[DeviceRow]] = defaultdict(list)
        for device in connection.execute(query.order_by(columns.kind, columns.index)).mappings():
            values = {name: value for name, value in device.items() if name != "node"}
            devices[device["node"]].append(DeviceRow(**values))
    return [_node(row._mapping, devices[row.id]) for row in rows]


def _node(row: RowMapping, devices: list[DeviceRow]) -> NodeRow:
    checks = tuple(Check(**check) for check in row["checks"])
    return NodeRow(**{**row, "checks": checks, "devices": tuple(devices)})
