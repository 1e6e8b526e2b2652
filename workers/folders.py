"""Where an attempt's files lie in a node's data folder: work/<attempt>, logs/<attempt>.log."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs.stages.base import OUTPUTS
from workers.processes import sweep

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def checked(name: str) -> str:
    """A name that is safe as one part of a path; raises ValueError for any other."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} can't be a file's name")
    return name


def log_path(data: Path, attempt_id: str) -> Path:
    """Where an attempt's log is written while it runs, and kept afterwards."""
    return data / "logs" / f"{checked(attempt_id)}.log"


def empty_outputs(folder: Path) -> None:
    """Remove what an attempt's commands have written, so that they can run again."""
    shutil.rmtree(folder / OUTPUTS)
    (folder / OUTPUTS).mkdir()


@contextmanager
def working_folder(data: Path, attempt_id: str) -> Iterator[Path]:
    """An attempt's folder with an empty outputs/, removed at the end; locked, so that nobody takes it for left over."""
    folder = data.absolute() / "work" / checked(attempt_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = _make_locked(folder)
    try:
        (folder / OUTPUTS).mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clear_leftovers(data: Path) -> None:
    """End and remove what agents left that were killed; the attempts of living ones are locked and stay."""
    for folder in (data / "work").glob("*/"):
        with suppress(FileNotFoundError, BlockingIOError):
            _clear(folder)


def _clear(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sweep(folder.name)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _make_locked(folder: Path) -> int:
    """Make a folder and return it open and locked: again, where it was taken for left over before it was locked."""
    while True:
        folder.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return lock
            os.close(lock)
