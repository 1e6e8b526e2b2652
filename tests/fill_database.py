"""A process that submits jobs to a database without end, and tells the error that stops it."""

import sys

from db.connection.engine import open_database
from db.store import Store
from jobs.errors import HaloError
from tests.stored_jobs import submit


def fill(url: str) -> None:
    with open_database(url, create=True) as database:
        while True:
            submit(Store(database))


if __name__ == "__main__":
    try:
        fill(sys.argv[1])
    except HaloError as error:
        sys.exit(f"{type(error).__name__}: {error}")
