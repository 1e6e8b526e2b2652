"""Noticing commits of other processes: Postgres notifies, SQLite is polled."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

CHANNEL = "haloctl"
POLL_INTERVAL_S = 0.02  #: a poll of a SQLite file takes microseconds
RECONNECT_INTERVAL_S = 0.5


class ChangeMonitor(ABC):
    """A thread that calls `wake` after each commit, and also once when it starts and after each outage."""

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        self._engine, self._wake = engine, wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="database-watch", daemon=True)

    def __enter__(self) -> "ChangeMonitor":
        self._stopped, self._stopping = os.pipe()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        os.write(self._stopping, b".")
        self._thread.join()
        os.close(self._stopped)
        os.close(self._stopping)

    def _run(self) -> None:
        faults = (DBAPIError, OSError, self._engine.dialect.loaded_dbapi.Error)
        while not self._stop.is_set():
            with suppress(*faults):
                self._monitor_one_connection()
            self._stop.wait(RECONNECT_INTERVAL_S)

    @abstractmethod
    def _monitor_one_connection(self) -> None:
        """Call `wake` after each commit, until it is time to stop or the connection breaks."""


class SqliteChangeMonitor(ChangeMonitor):
    """Polls SQLite's data version, which changes with each commit of another connection."""

    def _monitor_one_connection(self) -> None:
        connection = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            seen = None
            while not self._stop.wait(POLL_INTERVAL_S):
                version = cursor.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    seen = version
                    self._wake()
        finally:
            connection.invalidate()


class PostgresChangeMonitor(ChangeMonitor):
    """Listens to the channel that every writing transaction notifies."""

    def _monitor_one_connection(self) -> None:
        with self._engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            try:
                connection.exec_driver_sql(f"LISTEN {CHANNEL}")
                self._listen(connection.connection.driver_connection)
            finally:
                connection.invalidate()

    def _listen(self, connection: Any) -> None:
        with DefaultSelector() as selector:
            selector.register(connection, EVENT_READ)
            selector.register(self._stopped, EVENT_READ)
            while not self._stop.is_set():
                self._wake()
                while not self._heard(connection) and not self._stop.is_set():
                    selector.select()

    def _heard(self, connection: Any) -> bool:
        """Whether somebody wrote since the last call."""
        return bool(list(connection.notifies(timeout=0)))
