"""Writes of nodes and devices: what they are, and which of them must not be used."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, and_, bindparam, delete, insert, select, update

from db.schema import tables
from db.schema.filters import among, newest_event
from db.writes import changes
from db.writes.changes import ChangeAction
from jobs.errors import NotFound
from jobs.task import Device, Node, Place, Unfit


class Cordon(StrEnum):
    """Why nothing new starts on a node."""

    DRAINING = "draining"  #: what runs there may finish
    REQUEUING = "requeuing"  #: what runs there is ended and requeued
    QUARANTINED = "quarantined"  #: it was found unfit


def record(connection: Connection, at: datetime, up: Sequence[Node], not_ready: Mapping[str, str]) -> None:
    """Record the nodes that are up, and why some of them take no task now; all others are down."""
    names = {node.id for node in up}
    known_rows = {
        row.id: row for row in connection.execute(select(tables.nodes).order_by(tables.nodes.c.id).with_for_update())
    }
    gone = [name for name, row in known_rows.items() if row.is_up and name not in names]
    if gone:
        query = update(tables.nodes).where(tables.nodes.c.id == bindparam("_id")).values(is_up=False)
        connection.execute(query, [{"_id": name} for name in gone])
    come = [name for name in names if name not in known_rows or not known_rows[name].is_up]
    for action, those in ((ChangeAction.DOWN, gone), (ChangeAction.UP, come)):
        for name in sorted(those):
            changes.record(connection, action, name)
    rows = {node.id: _node_row(at, node) | {"not_ready_reason": not_ready.get(node.id)} for node in up}
    _insert(
        connection, tables.nodes, [row | {"first_seen_at": at} for name, row in rows.items() if name not in known_rows]
    )
    _update_rows(connection, tables.nodes, ["id"], [row for name, row in rows.items() if name in known_rows])
    _record_devices(connection, up)


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
        "last_seen_at": at,
        "is_up": True,
    }


def _record_devices(connection: Connection, up: Sequence[Node]) -> None:
    """Record the devices of nodes, and delete those that are gone unless they are quarantined: they may come back."""
    known_rows = {_key(row._mapping): row._mapping for row in connection.execute(select(tables.devices))}
    rows = [_device_row(node, device) for node in up for device in node.devices]
    seen, names = {_key(row) for row in rows}, {node.id for node in up}
    gone = [
        key
        for key, row in known_rows.items()
        if key[0] in names and key not in seen and row["quarantine_reason"] is None
    ]
    for key in gone:
        connection.execute(delete(tables.devices).where(_is_device(*key)))
    _insert(connection, tables.devices, [row for row in rows if _key(row) not in known_rows])
    known = [row for row in rows if _key(row) in known_rows]
    changed = [row for row in known if any(known_rows[_key(row)][name] != value for name, value in row.items())]
    _update_rows(connection, tables.devices, ["node", "kind", "index"], changed)


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


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), list(rows))


def _update_rows(connection: Connection, table: Table, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    names = [name for name in rows[0] if name not in keys]
    values = {name: bindparam(f"_{name}", type_=table.c[name].type) for name in names}
    same = [table.c[name] == bindparam(f"_{name}") for name in keys]
    connection.execute(
        update(table).where(*same).values(values), [{f"_{name}": row[name] for name in row} for row in rows]
    )


def lock(connection: Connection, names: Sequence[str]) -> None:
    """Lock nodes: attempts that started there before are committed, later ones see what the transaction changes."""
    columns = tables.nodes.c
    connection.execute(select(columns.id).where(columns.id.in_(names)).order_by(columns.id).with_for_update())


def cordon(connection: Connection, at: datetime, name: str, how: Cordon, reason: str) -> None:
    """Let nothing new start on a node; raises NotFound."""
    lock(connection, [name])
    after = newest_event(connection)
    _update(connection, name, cordon=how, cordon_reason=reason, cordoned_at=at, cordoned_after=after)


def uncordon(connection: Connection, name: str) -> None:
    """Let tasks start on a node again, except on its quarantined devices. Raises NotFound."""
    _update(connection, name, cordon=None, cordon_reason=None, cordoned_at=None, cordoned_after=None)


def _update(connection: Connection, name: str, **values: Any) -> None:
    if not connection.execute(update(tables.nodes).where(tables.nodes.c.id == name).values(**values)).rowcount:
        raise NotFound("node", name)


def quarantine(connection: Connection, at: datetime, unfit: Iterable[Unfit]) -> None:
    """Quarantine nodes and devices: those that are quarantined keep their reason, unknown ones are ignored."""
    nodes, devices, unfit = tables.nodes.c, tables.devices.c, list(unfit)
    if not unfit:
        return
    lock(connection, sorted({each.node for each in unfit}))
    after = newest_event(connection)
    for each in unfit:
        if not each.kind:
            fresh = (nodes.id == each.node, nodes.cordon.is_distinct_from(Cordon.QUARANTINED))
            values: dict[str, Any] = {"cordon": Cordon.QUARANTINED, "cordon_reason": each.reason}
            values |= {"cordoned_at": at, "cordoned_after": after}
            changed = connection.execute(update(tables.nodes).where(*fresh).values(values)).rowcount
        else:
            fresh = (_is_device(each.node, each.kind, each.index), devices.quarantine_reason.is_(None))
            values = {"quarantine_reason": each.reason, "quarantined_at": at, "quarantined_after": after}
            changed = connection.execute(update(tables.devices).where(*fresh).values(values)).rowcount
        if changed:
            subject = f"{each.node}/{each.kind}:{each.index}" if each.kind else each.node
            changes.record(connection, ChangeAction.QUARANTINE, subject, each.reason)


def release(connection: Connection, name: str, kind: str, index: int | None) -> None:
    """End the quarantine of a device, of all of a kind without `index`, or of the node without `kind`.

    Raises NotFound.
    """
    if not kind:
        uncordon(connection, name)
        return
    values = {"quarantine_reason": None, "quarantined_at": None, "quarantined_after": None}
    if not connection.execute(update(tables.devices).where(_is_device(name, kind, index)).values(values)).rowcount:
        raise NotFound("device", f"{name} {kind}" + ("" if index is None else f" {index}"))


def _is_device(node: str, kind: str, index: int | None) -> ColumnElement[bool]:
    columns = tables.devices.c
    same = and_(columns.node == node, columns.kind == kind)
    return same if index is None else and_(same, columns.index == index)


_SELECT_LOCKED = (
    select(tables.nodes.c.id, tables.nodes.c.cordon)
    .where(among(tables.nodes.c.id))
    .order_by(tables.nodes.c.id)
    .with_for_update(read=True)
)
_QUARANTINED = select(*(tables.devices.c[name] for name in ("node", "kind", "index", "quarantine_reason"))).where(
    tables.devices.c.quarantine_reason.is_not(None)
)
_SELECT_QUARANTINED_ON = _QUARANTINED.where(among(tables.devices.c.node))
_SELECT_CORDONED = select(*(tables.nodes.c[name] for name in ("id", "cordon", "cordon_reason"))).where(
    tables.nodes.c.cordon.is_not(None)
)


def usable(connection: Connection, places_by_key: Mapping[str, Sequence[Place]]) -> set[str]:
    """Return the keys of the places that may be used; nothing cordons their nodes until the transaction ends."""
    names = sorted({place.node for places in places_by_key.values() for place in places})
    cordoned_names = {row.id for row in connection.execute(_SELECT_LOCKED, {"ids": names}) if row.cordon is not None}
    quarantined_devices = quarantined(connection, names)
    return {
        key
        for key, places in places_by_key.items()
        if not any(_is_unusable(place, cordoned_names, quarantined_devices) for place in places)
    }


def _is_unusable(place: Place, cordoned_names: set[str], quarantined_devices: Collection[tuple[str, str, int]]) -> bool:
    return place.node in cordoned_names or any(
        (place.node, device.kind, device.index) in quarantined_devices for device in place.devices
    )


def quarantined(connection: Connection, names: Sequence[str] | None = None) -> dict[tuple[str, str, int], str]:
    """Return the quarantined devices of some nodes or of all, by node, kind and index, with the reasons."""
    rows = (
        connection.execute(_QUARANTINED)
        if names is None
        else connection.execute(_SELECT_QUARANTINED_ON, {"ids": names})
    )
    return {_key(row._mapping): row.quarantine_reason for row in rows}


def cordoned(connection: Connection) -> dict[str, tuple[Cordon, str]]:
    """Return the cordoned nodes, each with how it was cordoned and why."""
    return {row.id: (Cordon(row.cordon), row.cordon_reason or "") for row in connection.execute(_SELECT_CORDONED)}
