"""How a node tells whether it sees the head's artifact store: a file in it that only that store has."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from jobs.errors import StorageUnusable
from workers.artifacts import Location
from workers.artifacts.locations import MARK, folder_of


def make(store: Location) -> str:
    """The mark of a store, which is given one where it has none; raises OSError, or StorageUnusable for a URL."""
    folder = folder_of(store)
    return _make_at(str(store)) if folder is None else _make_in(folder)


def read(store: Location) -> str | None:
    """The mark of the store that is seen here, if any is; raises StorageUnusable for a URL that can't be reached."""
    folder = folder_of(store)
    if folder is None:
        from workers.artifacts.remote import mark

        return mark(str(store))
    with suppress(OSError):
        return (folder / MARK).read_text()
    return None


def _make_in(store: Path) -> str:
    store.mkdir(parents=True, exist_ok=True)
    if not (store / MARK).exists():
        with tempfile.NamedTemporaryFile("w", dir=store, prefix=f"{MARK}-") as fresh, suppress(FileExistsError):
            fresh.write(uuid4().hex)
            fresh.flush()
            os.chmod(fresh.name, 0o644)  # for other users' agents on other machines
            os.link(fresh.name, store / MARK)
    return (store / MARK).read_text()


def _make_at(url: str) -> str:
    from workers.artifacts.remote import mark

    found = mark(url, uuid4().hex)
    if not found:
        raise StorageUnusable(f"artifact store {url}", "what was written there can't be read")
    return found
