"""The files of attempts in a node's data folder: work/<attempt>, logs/<attempt>.log.

Processes run in work/<attempt>/run, the only part that they may write to. Inputs are links to files of the store, so
they lie beside it: what a process could change there would be changed in the store.

An attempt's folder is locked by fcntl, not filelock, since the folder itself is the lock: no lock file is left behind.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs.paths import path_part
from jobs.stages.base import INPUTS, OUTPUTS
from workers.processes.attempt_processes import kill_attempt
from workers.processes.stage_user import StageUser, let_pass

RUN = "run"  #: the folder that processes run in


def log_path(data: Path, attempt_id: str) -> Path:
    """Return where an attempt's log is written while it runs, and kept afterwards."""
    return data / "logs" / f"{path_part(attempt_id)}.log"


def empty_outputs(folder: Path, user: StageUser | None = None) -> None:
    """Remove the outputs of an attempt's commands, so that they can run again."""
    shutil.rmtree(folder / OUTPUTS)
    _make_for(folder / OUTPUTS, user)


def take_outputs(folder: Path, user: StageUser | None = None) -> None:
    """Make an attempt's outputs this process's own. Links, and files of others, are removed: a stage didn't make them.

    Raises OSError where the folder of the outputs is no folder any more.
    """
    outputs = os.open(folder / OUTPUTS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for name in os.listdir(outputs):
            status = os.stat(name, dir_fd=outputs, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode) or status.st_uid not in (os.geteuid(), user and user.uid):
                os.unlink(name, dir_fd=outputs)
            elif user and stat.S_ISREG(status.st_mode):
                os.chown(name, os.geteuid(), os.getegid(), dir_fd=outputs, follow_symlinks=False)
    finally:
        os.close(outputs)


@contextmanager
def working_folder(data: Path, attempt_id: str, user: StageUser | None = None) -> Iterator[Path]:
    """A context with the folder that an attempt runs in, removed at the end.

    The attempt's folder is locked, so that nobody takes it for a leftover.
    """
    folder = data.absolute() / "work" / path_part(attempt_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = _make_locked(folder)
    try:
        (folder / INPUTS).mkdir()
        _make_for(folder / RUN, user)
        _make_for(folder / RUN / OUTPUTS, user)
        (folder / RUN / INPUTS).symlink_to(Path("..", INPUTS))
        if user:
            for passed in (data.absolute(), folder.parent, folder):
                let_pass(passed)
        yield folder / RUN
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make_for(folder: Path, user: StageUser | None) -> None:
    folder.mkdir(mode=0o700)
    if user:
        os.chown(folder, user.uid, user.gid)


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
