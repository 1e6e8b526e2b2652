"""A whole database as lines of text, the same for SQLite and Postgres, and back: nothing is lost on the way.

The first line says what follows; then each row is a line, its table's name and its values; the last line counts them.
JSON stays the text that it is, times are in UTC, and rows come in the order of their keys: equal databases make equal
lines. No address and no password is in it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Float,
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

from db import tables
from db.engine import Database
from db.faults import shown
from db.tables import SCHEMA, Moment
from jobs.errors import FileError, NotEmpty

FORMAT = "haloctl database"
AT_ONCE = 1000  #: rows in memory

#: What a value of a column's type is in a line; the first type that fits counts.
PLAIN: dict[type, tuple[type, ...]] = {
    Moment: (str,),
    JSON: (str,),
    Boolean: (bool,),
    Integer: (int,),
    Float: (float, int),
    String: (str,),
}

Row = list[Any]


def lines_of(database: Database) -> Iterator[str]:
    """The database as of one moment."""
    counts: Counter[str] = Counter()
    with database.reading() as connection:
        yield _line({"format": FORMAT, "schema": SCHEMA, "tables": _columns()})
        for source in tables.metadata.sorted_tables:
            query = select(*map(_read, source.columns)).order_by(
                *(_sorted(connection, key) for key in source.primary_key)
            )
            for row in connection.execution_options(yield_per=AT_ONCE).execute(query):
                counts[source.name] += 1
                yield _line([source.name, *map(_plain, row)])
        yield _line({"rows": counts})


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n"


def _columns() -> dict[str, list[str]]:
    return {source.name: [column.name for column in source.columns] for source in tables.metadata.sorted_tables}


def _read(column: Column[Any]) -> ColumnElement[Any]:
    return cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column


def _sorted(connection: Connection, key: Column[Any]) -> ColumnElement[Any]:
    """Byte by byte on Postgres too, whatever its language is."""
    is_text = isinstance(_type(key), String)
    return key.collate("C") if is_text and connection.dialect.name == "postgresql" else key


def _type(column: Column[Any]) -> Any:
    """The column's type; of text that is made storable, text."""
    kind = column.type
    return kind.impl if isinstance(kind, TypeDecorator) and not isinstance(kind, Moment) else kind


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def take_in(database: Database, file: str, lines: Iterable[str]) -> dict[str, int]:
    """Fill a database that holds nothing with what `lines_of` made: all of it, or nothing. Returns rows by table.

    Raises NotEmpty, and FileError, which names the line of `file`, where the lines are not such or not all there.
    """
    numbered = enumerate(lines, 1)
    _expect_head(file, next(numbered, (1, ""))[1])
    with database.writing() as connection:
        _expect_empty(connection)
        counts = _insert_all(connection, file, numbered)
        _go_on_counting(connection)
    return counts


def _expect_head(file: str, line: str) -> None:
    head = _parsed(file, 1, line)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise FileError(file, 1, "format", "is not a database that `haloctl db export` wrote")
    if head.get("schema") != SCHEMA:
        remedy = "import it with the haloctl that wrote it, and run `haloctl db upgrade` then"
        raise FileError(file, 1, "schema", f"is {head.get('schema')}, and this haloctl's is {SCHEMA}: {remedy}")
    if head.get("tables") != _columns():
        raise FileError(file, 1, "tables", "are not those of this haloctl")


def _expect_empty(connection: Connection) -> None:
    """Nobody else writes until the end."""
    names = [source.name for source in tables.metadata.sorted_tables]
    if connection.dialect.name == "postgresql":
        quoted = ", ".join(f'"{name}"' for name in names)
        connection.exec_driver_sql(f"LOCK TABLE {quoted} IN EXCLUSIVE MODE")
    for source in tables.metadata.sorted_tables:
        if connection.execute(select(1).select_from(source).limit(1)).first():
            raise NotEmpty(shown(connection.engine.url), source.name)


def _insert_all(connection: Connection, file: str, numbered: Iterable[tuple[int, str]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    batch: list[tuple[int, Row]] = []
    name = ""
    for number, line in numbered:
        found = _parsed(file, number, line)
        if isinstance(found, dict):
            _insert(connection, file, name, batch)
            _expect_end(file, number, found, counts, numbered)
            return {source: counts[source] for source in _columns() if counts[source]}
        if found[0] != name or len(batch) == AT_ONCE:
            _insert(connection, file, name, batch)
            name, batch = _named(file, number, found), []
        batch.append((number, found))
        counts[name] += 1
    raise FileError(file, None, "", "ends too early: it was cut off")


def _parsed(file: str, number: int, line: str) -> Any:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        found = None
    if not (isinstance(found, dict) or (isinstance(found, list) and found)):
        what = "is not a database that `haloctl db export` wrote" if number == 1 else "is no row"
        raise FileError(file, number, "", what)
    return found


def _named(file: str, number: int, row: Row) -> str:
    if row[0] not in tables.metadata.tables:
        raise FileError(file, number, "", f"is of the table {row[0]!r}, which there is not")
    return str(row[0])


def _expect_end(
    file: str, number: int, found: dict[str, Any], counts: Counter[str], rest: Iterable[tuple[int, str]]
) -> None:
    if found.get("rows") != dict(counts):
        raise FileError(file, number, "rows", "counts others than there are: lines are missing, or too many")
    if next(iter(rest), None):
        raise FileError(file, number + 1, "", "comes after the end")


def _insert(connection: Connection, file: str, name: str, batch: Sequence[tuple[int, Row]]) -> None:
    if not batch:
        return
    kinds = [(column.name, _kind(column)) for column in tables.metadata.tables[name].columns]
    rows = [_values(file, number, kinds, row) for number, row in batch]
    try:
        connection.execute(insert(_written(tables.metadata.tables[name])), rows)
    except (IntegrityError, DataError) as error:
        reason = str(error.orig).splitlines()[0]
        said = f"{name} can't be stored, up to line {batch[-1][0]}: {reason}"
        raise FileError(file, batch[0][0], "", said) from error


def _written(source: Table) -> Any:
    """The table, with its JSON taken as the text that it is."""
    return table(
        source.name, *(column(one.name, None if isinstance(one.type, JSON) else one.type) for one in source.columns)
    )


def _values(file: str, number: int, kinds: Sequence[tuple[str, type]], row: Row) -> dict[str, Any]:
    """The values of a line by their columns, which `kinds` names with their types."""
    if len(row) != len(kinds) + 1:
        raise FileError(file, number, row[0], f"has {len(row) - 1} values, and its table {len(kinds)} columns")
    values = dict(zip((name for name, _ in kinds), row[1:], strict=True))
    for name, kind in kinds:
        value: Any = values[name]
        plain: Any = PLAIN[kind]
        if value is None:
            continue
        try:
            if not isinstance(value, plain) or isinstance(value, bool) != (kind is Boolean):
                raise ValueError(f"it is {value!r}")
            if kind is Moment:
                values[name] = datetime.fromisoformat(value)
            elif kind is JSON:
                json.loads(value)
        except ValueError as error:
            raise FileError(file, number, f"{row[0]}.{name}", f"can't be that: {error}") from error
    return values


def _kind(column: Column[Any]) -> type:
    return next(kind for kind in PLAIN if isinstance(_type(column), kind))


def _go_on_counting(connection: Connection) -> None:
    """What is counted up goes on after the last; SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for source in tables.metadata.sorted_tables:
        key = source.primary_key.columns[0]
        if key is source.autoincrement_column and isinstance(key.type, Integer) and not key.foreign_keys:
            last = connection.scalar(select(func.max(key)))
            if last is not None:
                sequence = func.pg_get_serial_sequence(source.name, key.name)
                connection.execute(select(func.setval(sequence, last)))
