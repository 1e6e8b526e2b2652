"""One leader at a time: a lock that the operating system or the server drops when its holder dies."""

import fcntl
import os
from abc import ABC, abstractmethod
from pathlib import Path

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from db.faults import told
from jobs.errors import DatabaseUnreachable

LEADER_KEY = 0x68616C6F  #: of the advisory lock

#: How the server notices that the leader's machine is gone, and drops its lock; by default that takes hours.
NOTICES_ITS_END = ("tcp_keepalives_idle = 5", "tcp_keepalives_interval = 2", "tcp_keepalives_count = 3")

TAKE = "SELECT pg_try_advisory_lock(:key)"
HELD = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = 0 AND objid = :key
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class Leadership(ABC):
    """The right to drive jobs, which one process at a time has; it ends with the context or with the process."""

    times_won = 0  #: more than once where the right was lost in between: somebody else may have had it

    @abstractmethod
    def try_lead(self) -> bool:
        """Become the leader, or make sure of still being it."""

    @abstractmethod
    def is_anybodys(self) -> bool:
        """Whether somebody leads now. Not to be asked by the leader."""

    @abstractmethod
    def close(self) -> None:
        """Let somebody else lead."""

    def __enter__(self) -> "Leadership":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileLeadership(Leadership):
    """A lock on a file beside a SQLite database."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor: int | None = None

    def try_lead(self) -> bool:
        """Become the leader, or make sure of still being it."""
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise DatabaseUnreachable(f"{self._file}", f"{error.strerror}: its folder has to be writable") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self.times_won += 1
        return True

    def is_anybodys(self) -> bool:
        """Whether somebody leads now; for that moment nobody can begin to."""
        try:
            descriptor = os.open(self._file, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise DatabaseUnreachable(f"{self._file}", f"{error.strerror}: it has to be readable") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def close(self) -> None:
        """Let somebody else lead. The file stays: removing it would let two lead."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class ServerLeadership(Leadership):
    """An advisory lock of a Postgres session of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._session: Connection | None = None  #: kept while it waits for its turn: each costs the server a process
        self._leads = False

    def try_lead(self) -> bool:
        """Become the leader, or make sure of still being it: a session that was cut has lost the lock."""
        with told(self._engine.url):
            if self._session is None or not self._lives(self._session):
                self._session = self._engine.connect()
                for setting in NOTICES_ITS_END:
                    self._session.exec_driver_sql(f"SET {setting}")
            if not self._leads and self._session.scalar(text(TAKE), {"key": LEADER_KEY}):
                self._leads = True
                self.times_won += 1
            return self._leads

    def is_anybodys(self) -> bool:
        """Whether somebody leads now."""
        with told(self._engine.url), self._engine.connect() as connection:
            return bool(connection.scalar(text(HELD), {"key": LEADER_KEY}))

    def _lives(self, session: Connection) -> bool:
        try:
            session.execute(text("SELECT 1"))
        except DBAPIError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Let somebody else lead: the session ends, and its lock with it."""
        if self._session is not None:
            self._session.invalidate()
            self._session.close()
            self._session, self._leads = None, False
