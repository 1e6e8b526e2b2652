"""Locks that one process holds at a time; the operating system or the server releases them when their holder dies."""

import fcntl
import os
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from db.connection.errors import translate_errors
from jobs.errors import DatabaseUnreachable


@dataclass(frozen=True)
class LockName:
    """What a lock is for."""

    ending: str  #: of its file, beside a SQLite database
    key: int  #: of the advisory lock in a Postgres database


LEADER = LockName("leader", 0x68616C6F)  #: for the process that drives jobs
COLLECTOR = LockName("collector", 0x68616C67)  #: for the one that removes artifacts


#: How the server notices that the leader's machine is gone, and drops its lock; by default that takes hours.
KEEPALIVE_SETTINGS = ("tcp_keepalives_idle = 5", "tcp_keepalives_interval = 2", "tcp_keepalives_count = 3")

TAKE = "SELECT pg_try_advisory_lock(:key)"
QUEUE = "SELECT pg_advisory_lock(:key)"
IS_QUEUED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = :pid AND NOT granted"
HANDOVER_S = 10  #: for the server to notice that a socket was closed
POLL_S = 0.01
HELD = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = 0 AND objid = :key
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class ProcessLock(ABC):
    """A lock that one process holds at a time; it is released with the context or with the process."""

    times_acquired = 0  #: more than once if it was lost in between: another process may have held it

    @abstractmethod
    def try_acquire(self) -> bool:
        """Acquire the lock, or check that it is still held; returns whether it is."""

    @abstractmethod
    def is_held(self) -> bool:
        """Return whether a process holds it now; not to be called by that process."""

    @abstractmethod
    def keep(self) -> int | None:
        """Keep the lock while this process replaces its program; returns what the new program gives to `adopt`.

        None if the lock is not held.
        """

    @abstractmethod
    def adopt(self, descriptor: int) -> None:
        """Take on the lock that this process held before it replaced its program; nobody else gets it in between."""

    @abstractmethod
    def close(self) -> None:
        """Release the lock."""

    def __enter__(self) -> "ProcessLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileProcessLock(ProcessLock):
    """A lock on a file beside a SQLite database."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Acquire the lock, or check that it is still held; returns whether it is."""
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
        self.times_acquired += 1
        return True

    def is_held(self) -> bool:
        """Return whether a process holds it now; while this checks, none can acquire the lock."""
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

    def keep(self) -> int | None:
        """Leave the locked file open."""
        if self._descriptor is not None:
            os.set_inheritable(self._descriptor, True)
        return self._descriptor

    def adopt(self, descriptor: int) -> None:
        """Use the locked file, if it is this one."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), self._file.stat()):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a file that is open once is locked once
                os.set_inheritable(descriptor, False)
                self._descriptor = descriptor
                self.times_acquired += 1

    def close(self) -> None:
        """Release the lock. The file stays: if it were removed, two processes could hold it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class AdvisoryProcessLock(ProcessLock):
    """An advisory lock in a Postgres session of its own."""

    def __init__(self, engine: Engine, key: int) -> None:
        self._key = key
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._session: Connection | None = None  #: kept while waiting: each session costs the server a process
        self._is_held = False
        self._adopted: int | None = None  #: the socket of an earlier session, which holds the lock while it is open

    def try_acquire(self) -> bool:
        """Acquire the lock, or check that it is still held: a session that was cut has lost it."""
        with translate_errors(self._engine.url):
            if self._session is None or not self._is_alive(self._session):
                self._session = self._engine.connect()
                for setting in KEEPALIVE_SETTINGS:
                    self._session.exec_driver_sql(f"SET {setting}")
            if not self._is_held and self._take(self._session):
                self._is_held = True
                self.times_acquired += 1
            return self._is_held

    def keep(self) -> int | None:
        """Leave the session's socket open: the server takes the session to be alive, and it has the lock."""
        if not self._is_held or self._session is None:
            return None
        descriptor: int = cast("Any", self._session.connection.driver_connection).fileno()
        os.set_inheritable(descriptor, True)
        return descriptor

    def adopt(self, descriptor: int) -> None:
        """Close the socket when a new session is the next to get the lock."""
        os.set_inheritable(descriptor, False)
        self._adopted = descriptor

    def _take(self, session: Connection) -> bool:
        if self._adopted is None:
            return bool(session.scalar(text(TAKE), {"key": self._key}))
        return self._take_over(session)

    def _take_over(self, session: Connection) -> bool:
        """Queue for the lock, then close the session that holds it: those who only try are behind this one."""
        descriptor, self._adopted = self._adopted, None
        assert descriptor is not None
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        session.exec_driver_sql(f"SET lock_timeout = '{HANDOVER_S}s'")
        with ThreadPoolExecutor(1) as pool, self._engine.connect() as observer:
            waiting = pool.submit(session.execute, text(QUEUE), {"key": self._key})
            try:
                while not waiting.done() and not observer.scalar(text(IS_QUEUED), {"pid": pid}):
                    time.sleep(POLL_S)
            finally:
                os.close(descriptor)
            try:
                waiting.result()
            except DBAPIError:  # somebody else has had the lock since the server dropped the old session
                return False
        session.exec_driver_sql("SET lock_timeout = 0")
        return True

    def is_held(self) -> bool:
        """Return whether a process holds it now."""
        with translate_errors(self._engine.url), self._engine.connect() as connection:
            return bool(connection.scalar(text(HELD), {"key": self._key}))

    def _is_alive(self, session: Connection) -> bool:
        try:
            session.execute(text("SELECT 1"))
        except DBAPIError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Release the lock by ending its session."""
        if self._session is not None:
            self._session.invalidate()
            self._session.close()
            self._session, self._is_held = None, False
