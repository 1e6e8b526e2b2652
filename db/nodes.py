"""The machines that heads have seen: what they are, and what of them must not be used."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, and_, bindparam, delete, insert, select, update

from db import tables
from db.filters import among
from jobs.errors import NotFound
from jobs.task import Device, Node, Place, Unfit


class Closed(StrEnum):
    """How a node is closed: nothing new is started on it."""

    DRAINING = "draining"  #: what runs there may finish
    HANDING_BACK = "handing_back"  #: what runs there is ended, and queued again
    QUARANTINED = "quarantined"  #: it was found unfit


def see(connection: Connection, at: datetime, found: Sequence[Node], refusing: Mapping[str, str]) -> None:
    """Remember nodes as they describe themselves, and why some take nothing now; the others are not up."""
    names = {node.id for node in found}
    was = {
        row.id: row for row in connection.execute(select(tables.nodes).order_by(tables.nodes.c.id).with_for_update())
    }
    gone = [{"_id": name} for name, row in was.items() if row.is_up and name not in names]
    if gone:
        connection.execute(update(tables.nodes).where(tables.nodes.c.id == bindparam("_id")).values(is_up=False), gone)
    rows = {node.id: _node_row(at, node) | {"refuses_why": refusing.get(node.id)} for node in found}
    _write(connection, tables.nodes, [row | {"first_seen_at": at} for name, row in rows.items() if name not in was])
    _rewrite(connection, tables.nodes, ["id"], [row for name, row in rows.items() if name in was])
    _see_devices(connection, found)


def _node_row(at: datetime, node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "host": node.host,
        "address": node.address,
        "cpus": node.cpus,
        "memory_bytes": node.memory_bytes,
        "versions": dict(node.versions),
        "checks": [asdict(check) for check in node.checks],
        "toolchains": dict(node.toolchains),
        "seen_at": at,
        "is_up": True,
    }


def _see_devices(connection: Connection, found: Sequence[Node]) -> None:
    """What a node has no more is forgotten, unless it is quarantined: it would be when it comes back."""
    was = {_key(row._mapping): row._mapping for row in connection.execute(select(tables.devices))}
    rows = [_device_row(node, device) for node in found for device in node.devices]
    seen, names = {_key(row) for row in rows}, {node.id for node in found}
    gone = [key for key, row in was.items() if key[0] in names and key not in seen and row["quarantined_why"] is None]
    for key in gone:
        connection.execute(delete(tables.devices).where(_is_device(*key)))
    _write(connection, tables.devices, [row for row in rows if _key(row) not in was])
    known = [row for row in rows if _key(row) in was]
    changed = [row for row in known if any(was[_key(row)][name] != value for name, value in row.items())]
    _rewrite(connection, tables.devices, ["node", "kind", "index"], changed)


def _key(row: Mapping[str, Any] | RowMapping) -> tuple[str, str, int]:
    return row["node"], row["kind"], row["index"]


def _device_row(node: Node, device: Device) -> dict[str, Any]:
    return {
        "node": node.id,
        "kind": device.kind,
        "index": device.index,
        "serial": device.serial,
        "memory_bytes": device.memory_bytes,
        "memory_used_bytes": device.memory_used_bytes,
    }


def _write(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), list(rows))


def _rewrite(connection: Connection, table: Table, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    names = [name for name in rows[0] if name not in keys]
    values = {name: bindparam(f"_{name}", type_=table.c[name].type) for name in names}
    same = [table.c[name] == bindparam(f"_{name}") for name in keys]
    connection.execute(
        update(table).where(*same).values(values), [{f"_{name}": row[name] for name in row} for row in rows]
    )


def hold(connection: Connection, names: Sequence[str]) -> None:
    """Wait for whoever is starting something on these nodes: what it starts was begun before what comes next."""
    columns = tables.nodes.c
    connection.execute(select(columns.id).where(columns.id.in_(names)).order_by(columns.id).with_for_update())


def close(connection: Connection, at: datetime, name: str, how: Closed, why: str) -> None:
    """Have nothing new started on a node; raises NotFound."""
    _update(connection, name, closed=how, closed_why=why, closed_at=at)


def open_again(connection: Connection, name: str) -> None:
    """Let a node be used again; its quarantined devices stay so. Raises NotFound."""
    _update(connection, name, closed=None, closed_why=None, closed_at=None)


def _update(connection: Connection, name: str, **values: Any) -> None:
    if not connection.execute(update(tables.nodes).where(tables.nodes.c.id == name).values(**values)).rowcount:
        raise NotFound("node", name)


def quarantine(connection: Connection, at: datetime, unfit: Iterable[Unfit]) -> None:
    """Take nodes and devices out of use; what is so already keeps its first reason, what is not known is ignored."""
    nodes, devices = tables.nodes.c, tables.devices.c
    for one in unfit:
        if not one.kind:
            fresh = (nodes.id == one.node, nodes.closed.is_distinct_from(Closed.QUARANTINED))
            values = {"closed": Closed.QUARANTINED, "closed_why": one.reason, "closed_at": at}
            connection.execute(update(tables.nodes).where(*fresh).values(values))
        else:
            fresh = (_is_device(one.node, one.kind, one.index), devices.quarantined_why.is_(None))
            said = {"quarantined_why": one.reason, "quarantined_at": at}
            connection.execute(update(tables.devices).where(*fresh).values(said))


def release(connection: Connection, name: str, kind: str, index: int | None) -> None:
    """Use a device again; all of a kind without `index`, the node itself without `kind`. Raises NotFound."""
    if not kind:
        open_again(connection, name)
        return
    values = {"quarantined_why": None, "quarantined_at": None}
    if not connection.execute(update(tables.devices).where(_is_device(name, kind, index)).values(values)).rowcount:
        raise NotFound("device", f"{name} {kind}" + ("" if index is None else f" {index}"))


def _is_device(node: str, kind: str, index: int | None) -> ColumnElement[bool]:
    columns = tables.devices.c
    same = and_(columns.node == node, columns.kind == kind)
    return same if index is None else and_(same, columns.index == index)


_HELD = (
    select(tables.nodes.c.id, tables.nodes.c.closed)
    .where(among(tables.nodes.c.id))
    .order_by(tables.nodes.c.id)
    .with_for_update(read=True)
)
_QUARANTINED = select(*(tables.devices.c[name] for name in ("node", "kind", "index", "quarantined_why"))).where(
    tables.devices.c.quarantined_why.is_not(None)
)
_QUARANTINED_ON = _QUARANTINED.where(among(tables.devices.c.node))
_CLOSED = select(*(tables.nodes.c[name] for name in ("id", "closed", "closed_why"))).where(
    tables.nodes.c.closed.is_not(None)
)


def fit(connection: Connection, wanted: Mapping[str, Sequence[Place]]) -> set[str]:
    """Those of `wanted` whose places may be used; they stay so until the transaction ends."""
    names = sorted({place.node for places in wanted.values() for place in places})
    shut = {row.id for row in connection.execute(_HELD, {"ids": names}) if row.closed is not None}
    bad = quarantined(connection, names)
    return {name for name, places in wanted.items() if not any(_is_shut(place, shut, bad) for place in places)}


def _is_shut(place: Place, shut: set[str], bad: Collection[tuple[str, str, int]]) -> bool:
    return place.node in shut or any((place.node, device.kind, device.index) in bad for device in place.devices)


def quarantined(connection: Connection, names: Sequence[str] | None = None) -> dict[tuple[str, str, int], str]:
    """Devices that must not be used, with the reason; of some nodes, or of all."""
    found = connection.execute(_QUARANTINED) if names is None else connection.execute(_QUARANTINED_ON, {"ids": names})
    return {_key(row._mapping): row.quarantined_why for row in found}


def closed(connection: Connection) -> dict[str, tuple[Closed, str]]:
    """The nodes that get nothing new: how they were closed, and why."""
    return {row.id: (Closed(row.closed), row.closed_why or "") for row in connection.execute(_CLOSED)}
