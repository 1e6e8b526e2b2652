"""Export and import of a whole database as lines of text, lossless and the same for SQLite and Postgres.

The first line describes the format; then each row is a line with its table's name and values; the last line counts
them. JSON is copied as text, times are in UTC, and rows come in the order of their keys: equal databases make equal
lines. No address, password or token is in it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Connection,
    Integer,
    String,
    Table,
    Text,
    TypeDecorator,
    cast,
    column,
    func,
    insert,
    select,
    table,
)
from sqlalchemy.exc import DataError, IntegrityError

from db.connection.engine import Database
from db.connection.errors import display_name
from db.schema import renames, schema_0008, tables
from db.schema.tables import SCHEMA, UtcDateTime
from db.writes.imported_values import CHECKS, KINDS, OLD_CHECKS, REFUSALS, Check, read_value
from jobs.errors import FileError, NotEmpty

FORMAT = "haloctl database"
AT_ONCE = 1000  #: rows in memory

CHARACTERS_AT_ONCE = 1 << 24  #: of lines in memory

Row = list[Any]
Columns = dict[str, list[str]]  #: names of columns by table, in the order of the values of a line
#: By table, of the values of a line in their order: column, kind in `KINDS`, and what is checked beyond it.
Layout = dict[str, list[tuple[str, type, Check | None]]]


def export_lines(database: Database) -> Iterator[str]:
    """Yield the lines of one snapshot of the database."""
    counts: Counter[str] = Counter()
    with database.reading() as connection:
        yield _line({"format": FORMAT, "schema": SCHEMA, "tables": _columns()})
        for source in tables.TRANSFERRED:
            query = select(*map(_read, source.columns)).order_by(
                *(_sorted(connection, key) for key in source.primary_key)
            )
            for row in connection.execution_options(yield_per=AT_ONCE).execute(query):
                counts[source.name] += 1
                yield _line([source.name, *map(_plain, row)])
        yield _line({"rows": counts})


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n"


def _columns() -> Columns:
    return {source.name: [column.name for column in source.columns] for source in tables.TRANSFERRED}


def _read(column: Column[Any]) -> ColumnElement[Any]:
    return cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column


def _sorted(connection: Connection, key: Column[Any]) -> ColumnElement[Any]:
    """Return a key to sort by; text sorts by bytes, on Postgres too, whatever its locale."""
    is_text = isinstance(_type(key), String)
    return key.collate("C") if is_text and connection.dialect.name == "postgresql" else key


def _type(column: Column[Any]) -> Any:
    """Return a column's type; that of sanitized text is text."""
    kind = column.type
    return kind.impl if isinstance(kind, TypeDecorator) and not isinstance(kind, UtcDateTime) else kind


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def import_lines(database: Database, file: str, lines: Iterable[str]) -> dict[str, int]:
    """Import the lines of `export_lines` into an empty database, all or none; returns the number of rows by table.

    Raises NotEmpty, and FileError, which names the line of `file`, if lines are invalid or missing.
    """
    numbered = enumerate(lines, 1)
    schema, columns = _expect_head(file, next(numbered, (1, ""))[1])
    with database.writing() as connection:
        _expect_empty(connection)
        layout = _layout(columns, CHECKS if schema == SCHEMA else OLD_CHECKS)
        counts = _insert_all(connection, file, layout, numbered)
        if schema == renames.OLD_SCHEMA:
            _mend(connection, file)
        _go_on_counting(connection)
    return counts


def _expect_head(file: str, line: str) -> tuple[str, Columns]:
    """Check the first line; returns the schema of the database that was exported, and the columns of its rows."""
    head = _parsed(file, 1, line)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise FileError(file, 1, "format", "is not a database that `haloctl db export` wrote")
    schema = head.get("schema")
    if schema not in (SCHEMA, renames.OLD_SCHEMA):
        remedy = "import it with the haloctl that wrote it, then run `haloctl db upgrade`"
        raise FileError(file, 1, "schema", f"is {schema}, and this haloctl's is {SCHEMA}: {remedy}")
    columns = _columns() if schema == SCHEMA else _old_columns()
    if head.get("tables") != columns:
        raise FileError(file, 1, "tables", "are not those of this haloctl")
    return str(schema), {
        name: [renames.COLUMNS.get(name, {}).get(column, column) for column in old] for name, old in columns.items()
    }


def _mend(connection: Connection, file: str) -> None:
    """Bring values of the schema before to those of this one."""
    try:
        renames.rename_values(connection)
        schema_0008.mend(connection)
    except REFUSALS as error:
        message = f"has values that schema {renames.OLD_SCHEMA} did not have: {error!r}"
        raise FileError(file, None, "", message) from error


def _layout(columns: Columns, checks: Mapping[str, Mapping[str, Check]]) -> Layout:
    return {
        name: [
            (column, _kind(tables.metadata.tables[name].c[column]), checks.get(name, {}).get(column))
            for column in names
        ]
        for name, names in columns.items()
    }


def _old_columns() -> Columns:
    """Return the columns by table, in the same order, that the schema before had, with their names in it."""
    old_names = {name: {new: old for old, new in columns.items()} for name, columns in renames.COLUMNS.items()}
    return {
        name: [
            old_names.get(name, {}).get(column, column)
            for column in columns
            if column not in renames.ADDED.get(name, ())
        ]
        for name, columns in _columns().items()
        if name not in renames.ADDED_TABLES
    }


def _expect_empty(connection: Connection) -> None:
    """Raise NotEmpty if a table has rows; no other process can write until the transaction ends."""
    names = [source.name for source in tables.TRANSFERRED]
    if connection.dialect.name == "postgresql":
        quoted = ", ".join(f'"{name}"' for name in names)
        connection.exec_driver_sql(f"LOCK TABLE {quoted} IN EXCLUSIVE MODE")
    for source in tables.TRANSFERRED:
        if connection.execute(select(1).select_from(source).limit(1)).first():
            raise NotEmpty(display_name(connection.engine.url), source.name)


def _insert_all(
    connection: Connection, file: str, layout: Layout, numbered: Iterable[tuple[int, str]]
) -> dict[str, int]:
    counts: Counter[str] = Counter()
    batch: list[tuple[int, Row]] = []
    name, characters = "", 0
    for number, line in numbered:
        parsed = _parsed(file, number, line)
        if isinstance(parsed, dict):
            _insert(connection, file, layout, name, batch)
            _expect_end(file, number, parsed, counts, numbered)
            return {source: counts[source] for source in _columns() if counts[source]}
        characters += len(line)
        if parsed[0] != name or len(batch) == AT_ONCE or characters > CHARACTERS_AT_ONCE:
            _insert(connection, file, layout, name, batch)
            name, batch, characters = _named(file, number, parsed), [], len(line)
        batch.append((number, parsed))
        counts[name] += 1
    raise FileError(file, None, "", "ends too early: it was cut off")


def _parsed(file: str, number: int, line: str) -> Any:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        parsed = None
    if not (isinstance(parsed, dict) or (isinstance(parsed, list) and parsed and isinstance(parsed[0], str))):
        what = "is not a database that `haloctl db export` wrote" if number == 1 else "is no row"
        raise FileError(file, number, "", what)
    return parsed


def _named(file: str, number: int, row: Row) -> str:
    if row[0] not in _columns():
        raise FileError(file, number, "", f"is of the table {row[0][:100]!r}, which there is not")
    return str(row[0])


def _expect_end(
    file: str, number: int, end: dict[str, Any], counts: Counter[str], rest: Iterable[tuple[int, str]]
) -> None:
    if end.get("rows") != dict(counts):
        raise FileError(file, number, "rows", "counts others than there are: lines are missing, or too many")
    if next(iter(rest), None):
        raise FileError(file, number + 1, "", "comes after the end")


def _insert(connection: Connection, file: str, layout: Layout, name: str, batch: Sequence[tuple[int, Row]]) -> None:
    if not batch:
        return
    rows = [_values(file, number, layout[name], row) for number, row in batch]
    try:
        connection.execute(insert(_written(tables.metadata.tables[name])), rows)
    except (IntegrityError, DataError) as error:
        reason = str(error.orig).splitlines()[0]
        message = f"{name} can't be stored, up to line {batch[-1][0]}: {reason}"
        raise FileError(file, batch[0][0], "", message) from error


def _written(source: Table) -> Any:
    """Return a table whose JSON columns take text as it is."""
    return table(
        source.name,
        *(column(stored.name, None if isinstance(stored.type, JSON) else stored.type) for stored in source.columns),
    )


def _values(file: str, number: int, columns: Sequence[tuple[str, type, Check | None]], row: Row) -> dict[str, Any]:
    """Return the values of a line by column."""
    if len(row) != len(columns) + 1:
        raise FileError(file, number, row[0], f"has {len(row) - 1} values, and its table {len(columns)} columns")
    values = {}
    for (name, kind, check), value in zip(columns, row[1:], strict=True):
        try:
            values[name] = read_value(kind, check, value)
        except REFUSALS as error:
            raise FileError(file, number, f"{row[0]}.{name}", f"can't be that: {error}") from error
    return values


def _kind(column: Column[Any]) -> type:
    return next(kind for kind in KINDS if isinstance(_type(column), kind))


def _go_on_counting(connection: Connection) -> None:
    """Set sequences to the highest ids, so that new rows continue after them; SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for source in tables.TRANSFERRED:
        key = source.primary_key.columns[0]
        if key is source.autoincrement_column and isinstance(key.type, Integer) and not key.foreign_keys:
            last = connection.scalar(select(func.max(key)))
            if last is not None:
                sequence = func.pg_get_serial_sequence(source.name, key.name)
                connection.execute(select(func.setval(sequence, last)))
