"""The files of attempts in a node's data folder: work/<attempt>, logs/<attempt>.log.

A working folder is locked by fcntl, not filelock, since the folder itself is the lock: no lock file is left behind.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs.paths import path_part
from jobs.stages.base import OUTPUTS
from workers.processes.attempt_processes import kill_attempt


def log_path(data: Path, attempt_id: str) -> Path:
    """Return where an attempt's log is written while it runs, and kept afterwards."""
    return data / "logs" / f"{path_part(attempt_id)}.log"


def empty_outputs(folder: Path) -> None:
    """Remove the outputs of an attempt's commands, so that they can run again."""
    shutil.rmtree(folder / OUTPUTS)
    (folder / OUTPUTS).mkdir()


@contextmanager
def working_folder(data: Path, attempt_id: str) -> Iterator[Path]:
    """A context with an attempt's folder, removed at the end; it is locked, so that nobody takes it for a leftover."""
    folder = data.absolute() / "work" / path_part(attempt_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = _make_locked(folder)
    try:
        (folder / OUTPUTS).mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clear_leftovers(data: Path) -> None:
    """End and remove what killed agents left; the attempts of living agents are locked and stay."""
    for folder in (data / "work").glob("*/"):
        with suppress(FileNotFoundError, BlockingIOError):
            _clear(folder)


def _clear(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kill_attempt(folder.name)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _make_locked(folder: Path) -> int:
    """Create a folder, and return it open and locked; again, if it was taken for a leftover before it was locked."""
    while True:
        folder.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return lock
            os.close(lock)
