"""Open databases, and begin the transactions that all queries and writes run in."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, Text, create_engine, event, func, select

from db.connection import schema_version
from db.connection.change_monitor import CHANNEL, ChangeMonitor, PostgresChangeMonitor, SqliteChangeMonitor
from db.connection.errors import BUSY_TIMEOUT_S, display_name, parse, translate_driver_errors, translate_errors
from db.connection.process_lock import COLLECTOR, LEADER, AdvisoryProcessLock, FileProcessLock, LockName, ProcessLock
from db.schema.tables import SCHEMA, to_json
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
        self._polls = self._engine.execution_options(**POLLING[self._engine.dialect.name])
        self._watch: PoolProxiedConnection | None = None
        self.observe: Callable[[str, float], None] = lambda kind, duration_s: None
        """Called with `read` or `write` and the duration of each transaction that was completed."""

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Run a read-only transaction, which sees one consistent snapshot; raises DatabaseUnreachable."""
        began = time.monotonic()
        with translate_errors(self.url), self._readers.begin() as connection:
            yield connection
        self.observe("read", time.monotonic() - began)

    @contextmanager
    def writing(self, *, survives_power_cut: bool = True) -> Iterator[Connection]:
        """Run a transaction that commits everything or nothing; raises DatabaseUnreachable.

        What does not have to survive a power cut is committed without waiting for the disk, where that can be chosen.
        """
        began = time.monotonic()
        engine = self._engine if survives_power_cut else self._polls
        with translate_errors(self.url), engine.begin() as connection:
            yield connection
            if self._engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"NOTIFY {CHANNEL}")
        self.observe("write", time.monotonic() - began)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Open a connection of the database driver, closed afterwards; raises DatabaseUnreachable."""
        with translate_errors(self.url):
            connection = self._engine.raw_connection()
            drivers = connection.driver_connection
            connection.detach()
            try:
                with translate_driver_errors(self.url, self._engine.dialect.loaded_dbapi):
                    yield drivers
            finally:
                connection.close()

    def monitor_changes(self, wake: Callable[[], None]) -> ChangeMonitor:
        """Return a context in which a thread calls `wake` soon after any process has committed.

        It is also called when the server is back after an outage. One call may stand for several commits, and some
        calls come without a commit.
        """
        return (SqliteChangeMonitor if self.url.drivername == "sqlite" else PostgresChangeMonitor)(self._engine, wake)

    def change_token(self) -> object:
        """Return a value that changes with each commit. At most one thread may call it at a time."""
        if self.url.drivername != "sqlite":  # ids of events would not do: they are not committed in their order
            with self.reading() as connection:
                return connection.scalar(select(func.pg_current_snapshot().cast(Text)))
        with translate_errors(self.url):  # data_version tells of other connections' commits, so this one never writes
            self._watch = self._watch or self._engine.raw_connection()
            cursor = self._watch.cursor()
            cursor.execute("PRAGMA data_version")
            return cursor.fetchone()

    def leader_lock(self) -> ProcessLock:
        """Return the lock that the leader, the process that drives jobs, holds."""
        return self._lock(LEADER)

    def collector_lock(self) -> ProcessLock:
        """Return the lock that the process holds that removes artifacts."""
        return self._lock(COLLECTOR)

    def _lock(self, name: LockName) -> ProcessLock:
        if self.url.drivername == "sqlite":
            return FileProcessLock(Path(f"{self.url.database}.{name.ending}"))
        return AdvisoryProcessLock(self._engine, name.key)

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
    """Open a database; with `create`, create its schema first if it is new or empty.

    Raises BadSetting for a URL that is neither SQLite's nor Postgres's, DatabaseUnreachable, SchemaOutdated or
    SchemaNewer.
    """
    parsed = parse(url)
    if not create:
        _expect_file(parsed)
    with translate_errors(parsed):
        database = Database(parsed)
    try:
        with database.reading() as connection:
            revision = schema_version.revision(connection)
        if revision is None and create:
            _migrate(parsed)
        else:
            schema_version.check(revision, parsed)
    except BaseException:
        database.close()
        raise
    return database


def upgrade(url: str) -> str:
    """Bring a database to this code's schema, creating it if need be; returns the schema's number."""
    _migrate(parse(url))
    return SCHEMA


def _migrate(url: URL) -> None:
    """Upgrade with foreign keys off: SQLite changes a table by recreating it, while other rows still refer to it."""
    with translate_errors(url):
        engine = _engine(url, foreign_keys=False)
        try:
            with engine.begin() as connection:
                schema_version.upgrade(connection)
        finally:
            engine.dispose()


def _expect_file(url: URL) -> None:
    """Raise DatabaseUnreachable if the file of a SQLite database is missing, since opening would create it."""
    if url.drivername == "sqlite" and not Path(str(url.database)).exists():
        raise DatabaseUnreachable(
            display_name(url), "it does not exist yet; `haloctl submit` or `haloctl db upgrade` makes it"
        )


#: Execution options of transactions that only read.
READING: dict[str, dict[str, Any]] = {
    "sqlite": {"begin": "BEGIN"},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}


#: Execution options of transactions whose loss in a power cut does not matter.
POLLING: dict[str, dict[str, Any]] = {"sqlite": {"synchronous": "NORMAL"}, "postgresql": {}}


#: Avoids a query on each first connection, for a type that no table uses.
UNUSED: dict[str, Any] = {"use_native_hstore": False}


def _engine(url: URL, *, foreign_keys: bool = True) -> Engine:
    return _sqlite_engine(url, foreign_keys) if url.drivername == "sqlite" else _postgres_engine(url)


def _sqlite_engine(url: URL, foreign_keys: bool) -> Engine:
    engine = create_engine(
        url, json_serializer=to_json, connect_args={"timeout": BUSY_TIMEOUT_S, "isolation_level": None}
    )
    event.listen(engine, "connect", _prepare)
    if foreign_keys:
        event.listen(engine, "connect", _enforce_foreign_keys)
    event.listen(engine, "begin", _begin)
    return engine


def _postgres_engine(url: URL) -> Engine:
    defaults = {"connect_timeout": CONNECT_TIMEOUT_S} | KEEPALIVES
    arguments = {name: value for name, value in defaults.items() if name not in url.query}
    engine = create_engine(url, json_serializer=to_json, pool_pre_ping=True, connect_args=arguments, **UNUSED)
    event.listen(engine, "connect", _never_compile)
    return engine


def _never_compile(connection: Any, _: object) -> None:
    """Turn JIT off: a statement whose cost the server overestimates ends long before its compilation would."""
    connection.autocommit = True
    connection.execute("SET jit = off")
    connection.autocommit = False


def _prepare(connection: Any, _: object) -> None:
    """Set WAL mode: readers don't wait for the writer."""
    connection.execute("PRAGMA journal_mode=WAL")


def _enforce_foreign_keys(connection: Any, _: object) -> None:
    """Enforce foreign keys, which SQLite ignores by default."""
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: Connection) -> None:
    """Begin a transaction; one that will write takes the lock at once, since it could be refused the lock later.

    A commit waits until the disk has it (FULL) or leaves that to the next such commit (NORMAL), which corrupts nothing.
    """
    options = connection.get_execution_options()
    if "begin" in options:
        connection.exec_driver_sql(options["begin"])
        return
    connection.exec_driver_sql(f"PRAGMA synchronous={options.get('synchronous', 'FULL')}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")
