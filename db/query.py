"""Other people's SQL, carried out so that it reads the views of `db.views` and does nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

from db import query_postgres, query_sqlite
from db.engine import Database
from db.query_faults import refused


@dataclass(frozen=True)
class Answer:
    """Rows, and whether there were more."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    is_cut: bool


def query(database: Database, sql: str, *, limit: int, timeout_s: float) -> Answer:
    """Answer one SELECT with at most `limit` rows; raises BadSetting where it is none, or asks too much."""
    text = sql.strip().rstrip("; \n\t")
    if not text:
        raise refused("it is empty")
    if database.url.drivername == "sqlite":
        columns, rows = query_sqlite.query(database.url, text, limit + 1, timeout_s)
    else:
        with database.session() as session:
            columns, rows = query_postgres.query(session, text, limit + 1, timeout_s)
    return Answer(tuple(columns), rows[:limit], len(rows) > limit)
