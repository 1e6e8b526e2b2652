"""The mark of an artifact store: a file in it with an id, by which a node tells whether it sees the head's store."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from jobs.errors import StorageUnusable
from workers.artifacts import Location
from workers.artifacts.locations import MARK, folder_of
from workers.durability import DISK


def make(store: Location) -> str:
    """Return the mark of a store, which is created where it has none; raises OSError, or StorageUnusable for a URL."""
    folder = folder_of(store)
    return _make_at_url(str(store)) if folder is None else _make_in_folder(folder)


def read(store: Location) -> str | None:
    """Return the mark of the store that is seen here, None without one.

    Raises StorageUnusable for a URL that can't be reached.
    """
    folder = folder_of(store)
    if folder is None:
        from workers.artifacts.remote import mark

        return mark(str(store))
    with suppress(OSError):
        return (folder / MARK).read_text()
    return None


def _make_in_folder(store: Path) -> str:
    store.mkdir(parents=True, exist_ok=True)
    if not (store / MARK).exists():
        with tempfile.NamedTemporaryFile("w", dir=store, prefix=f"{MARK}-") as fresh, suppress(FileExistsError):
            fresh.write(uuid4().hex)
            fresh.flush()
            os.chmod(fresh.name, 0o644)  # for other users' agents on other machines
            DISK.sync_file(Path(fresh.name))
            os.link(fresh.name, store / MARK)
            DISK.sync_folder(store)
    return (store / MARK).read_text()


def _make_at_url(url: str) -> str:
    from workers.artifacts.remote import mark

    text = mark(url, uuid4().hex)
    if not text:
        raise StorageUnusable(f"artifact store {url}", "its mark was written and can't be read")
    return text
