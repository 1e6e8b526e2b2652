"""Where an attempt's files lie in a node's data folder: work/<attempt>, logs/<attempt>.log."""

import fcntl
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs.stages.base import OUTPUTS
from workers.processes import sweep

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
TEMPORARY = "tmp"  #: in a working folder: what its commands take for /tmp


def checked(name: str) -> str:
    """A name that is safe as one part of a path; raises ValueError for any other."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} can't be a file's name")
    return name


def log_path(data: Path, attempt_id: str) -> Path:
    """Where an attempt's log is written while it runs, and kept afterwards."""
    return data / "logs" / f"{checked(attempt_id)}.log"


@contextmanager
def working_folder(data: Path, attempt_id: str) -> Iterator[Path]:
    """An attempt's folder with an empty outputs/, removed at the end; locked, so that nobody takes it for left over."""
    folder = data.absolute() / "work" / checked(attempt_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock_path(folder).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            (folder / OUTPUTS).mkdir(parents=True)
            (folder / TEMPORARY).mkdir()
            yield folder
        finally:
            _remove(folder)


def clear_leftovers(data: Path) -> None:
    """End and remove what agents left that were killed; the attempts of living ones are locked and stay."""
    for folder in (data / "work").glob("*/"):
        with _lock_path(folder).open("w") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sweep(folder.name)
            _remove(folder)


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _lock_path(folder).unlink(missing_ok=True)
