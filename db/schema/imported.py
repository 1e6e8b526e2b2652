"""Markers of imported jobs."""

from sqlalchemy import Connection, select

from db.schema import tables

DIGEST = "imported-"  #: what the digests of their attempts begin with: no task that could run has such a one


def is_imported(connection: Connection, job: str) -> bool:
    """Return whether a job, by its whole id, was imported."""
    return connection.scalar(select(tables.jobs.c.imported_from).where(tables.jobs.c.id == job)) is not None
