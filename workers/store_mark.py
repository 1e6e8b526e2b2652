"""How a node tells whether it sees the head's artifact store: a file in it that only that store has."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

NAME = ".haloctl-store"


def make(store: Path) -> str:
    """The mark of a store, which is given one where it has none; raises OSError."""
    store.mkdir(parents=True, exist_ok=True)
    if not (store / NAME).exists():
        with tempfile.NamedTemporaryFile("w", dir=store, prefix=f"{NAME}-") as fresh, suppress(FileExistsError):
            fresh.write(uuid4().hex)
            fresh.flush()
            os.chmod(fresh.name, 0o644)  # for other users' agents on other machines
            os.link(fresh.name, store / NAME)
    return (store / NAME).read_text()


def read(store: Path) -> str | None:
    """The mark of the store that is seen here, if any is."""
    with suppress(OSError):
        return (store / NAME).read_text()
    return None
