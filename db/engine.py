"""Opening a database, and the transactions that everything else runs in."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, Text, create_engine, event, func, select

from db import schema
from db.faults import BUSY_TIMEOUT_S, parse, shown, told
from db.leader import FileLeadership, Leadership, ServerLeadership
from db.tables import SCHEMA, to_json
from db.watch import CHANNEL, FileWatch, ServerWatch, Watch
from jobs.errors import DatabaseUnreachable

if TYPE_CHECKING:
    from sqlalchemy.pool import PoolProxiedConnection

CONNECT_TIMEOUT_S = 10

#: How a client notices that its server, or the cable, is gone; the system's own would be hours.
KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


class Database:
    """An open database. Threads may share it; processes open their own."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self._engine = _engine(url)
        self._readers = self._engine.execution_options(**READING[self._engine.dialect.name])
        self._watch: PoolProxiedConnection | None = None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view; raises DatabaseUnreachable."""
        with told(self.url), self._readers.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """All or nothing; raises DatabaseUnreachable."""
        with told(self.url), self._engine.begin() as connection:
            yield connection
            if self._engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"NOTIFY {CHANNEL}")

    @contextmanager
    def session(self) -> Iterator[Any]:
        """A connection of the driver's own that nobody uses afterwards; raises DatabaseUnreachable."""
        with told(self.url):
            connection = self._engine.raw_connection()
            drivers = connection.driver_connection
            connection.detach()
            try:
                yield drivers
            finally:
                connection.close()

    def watch(self, wake: Callable[[], None]) -> Watch:
        """A context in which `wake` is called, from a thread of its own, soon after anybody has committed.

        After an outage of the server too, once it is back. One call may tell of several commits, and one or another
        call may come without any.
        """
        return (FileWatch if self.url.drivername == "sqlite" else ServerWatch)(self._engine, wake)

    def change_token(self) -> object:
        """A value that differs when something was committed since the last call. For one thread at a time."""
        if self.url.drivername != "sqlite":  # ids of events would not do: they are not committed in their order
            with self.reading() as connection:
                return connection.scalar(select(func.pg_current_snapshot().cast(Text)))
        with told(self.url):  # data_version tells of other connections' commits, so this one never writes
            self._watch = self._watch or self._engine.raw_connection()
            cursor = self._watch.cursor()
            cursor.execute("PRAGMA data_version")
            return cursor.fetchone()

    def leadership(self) -> Leadership:
        """The lock that the process which drives jobs holds."""
        if self.url.drivername == "sqlite":
            return FileLeadership(Path(f"{self.url.database}.leader"))
        return ServerLeadership(self._engine)

    def close(self) -> None:
        """Close every connection."""
        if self._watch is not None:
            self._watch.close()
        self._engine.dispose()

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_database(url: str, *, create: bool) -> Database:
    """Open a database; a new or empty one is made ready when `create`.

    Raises BadSetting for a URL that is neither SQLite's nor Postgres's, DatabaseUnreachable, SchemaOutdated or
    SchemaNewer.
    """
    parsed = parse(url)
    if not create:
        _expect_file(parsed)
    with told(parsed):
        database = Database(parsed)
    try:
        with database.reading() as connection:
            found = schema.revision(connection)
        if found is None and create:
            _migrate(parsed)
        else:
            schema.check(found, parsed)
    except BaseException:
        database.close()
        raise
    return database


def upgrade(url: str) -> str:
    """Bring a database to this code's schema, creating it if need be; returns the schema's number."""
    _migrate(parse(url))
    return SCHEMA


def _migrate(url: URL) -> None:
    """SQLite changes a table by making it anew; it does not look at rows about it meanwhile."""
    with told(url):
        engine = _engine(url, looks_at_references=False)
        try:
            with engine.begin() as connection:
                schema.upgrade(connection)
        finally:
            engine.dispose()


def _expect_file(url: URL) -> None:
    """Opening would create it."""
    if url.drivername == "sqlite" and not Path(str(url.database)).exists():
        raise DatabaseUnreachable(
            shown(url), "it does not exist yet; `haloctl submit` or `haloctl db upgrade` makes it"
        )


#: How transactions that only read are begun.
READING: dict[str, dict[str, Any]] = {
    "sqlite": {"begin": "BEGIN"},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}


#: Not asked of a server with each first connection: whether it has a type that no table uses.
UNUSED: dict[str, Any] = {"use_native_hstore": False}


def _engine(url: URL, *, looks_at_references: bool = True) -> Engine:
    return _sqlite_engine(url, looks_at_references) if url.drivername == "sqlite" else _postgres_engine(url)


def _sqlite_engine(url: URL, looks_at_references: bool) -> Engine:
    engine = create_engine(
        url, json_serializer=to_json, connect_args={"timeout": BUSY_TIMEOUT_S, "isolation_level": None}
    )
    event.listen(engine, "connect", _prepare)
    if looks_at_references:
        event.listen(engine, "connect", _look_at_references)
    event.listen(engine, "begin", _begin)
    return engine


def _postgres_engine(url: URL) -> Engine:
    given = {"connect_timeout": CONNECT_TIMEOUT_S} | KEEPALIVES
    arguments = {name: value for name, value in given.items() if name not in url.query}
    engine = create_engine(url, json_serializer=to_json, pool_pre_ping=True, connect_args=arguments, **UNUSED)
    event.listen(engine, "connect", _never_compile)
    return engine


def _never_compile(connection: Any, _: object) -> None:
    """A statement that the server overestimates is done long before it would be compiled to machine code."""
    connection.autocommit = True
    connection.execute("SET jit = off")
    connection.autocommit = False


def _prepare(connection: Any, _: object) -> None:
    """Readers don't wait for the writer; a commit outlives every crash but the machine's, and that harms no other."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def _look_at_references(connection: Any, _: object) -> None:
    """Refuse rows about what is not there."""
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: Connection) -> None:
    """A transaction that will write takes the lock at once: one that gets it later may be refused at its end."""
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN IMMEDIATE"))
