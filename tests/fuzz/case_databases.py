"""The databases that cases import into and ask, and what must hold of them after each case."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import delete, func, select

from db.connection.engine import Database, open_database
from db.schema import tables
from db.store import Store
from tests.stored_jobs import everything, submit, succeed


@dataclass(frozen=True)
class CaseDatabase:
    """A database that several cases use one after the other."""

    url: str
    check: Callable[[int], str]  #: takes a case's exit code; returns what is wrong, or empty


@contextmanager
def to_import_into(url: str) -> Iterator[CaseDatabase]:
    """Yield an empty database, which is emptied after each case: a command that failed must have stored nothing."""

    def check(code: int) -> str:
        rows = _count(database)
        if rows:
            _empty(database)
        return f"{rows} rows are stored, though it failed" if rows and code else ""

    with open_database(url, create=False) as database:
        yield CaseDatabase(url, check)


@contextmanager
def to_ask(url: str) -> Iterator[CaseDatabase]:
    """Yield a database with a job, which no case may change."""
    with open_database(url, create=False) as database:
        store = Store(database)
        succeed(store, f"{submit(store)}-01")
        before = everything(database)
        yield CaseDatabase(url, lambda _: "" if everything(database) == before else "the database was changed")


def _count(database: Database) -> int:
    with database.reading() as connection:
        return sum(
            connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables.metadata.sorted_tables
        )


def _empty(database: Database) -> None:
    with database.writing() as connection:
        for table in reversed(tables.metadata.sorted_tables):
            connection.execute(delete(table))
