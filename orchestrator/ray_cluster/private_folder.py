"""Where Ray's files lie: in folders that only this user can enter.

Ray 2.60 opens its temporary folder to every user (mode 0777), whatever mode that had before. Its sockets and the link
`session_latest` are safe only below a parent that nobody else can enter. XDG_RUNTIME_DIR would be one, but it is
removed when its user logs out, and a Ray outlives that.
"""

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from jobs.errors import StorageUnusable

LONGEST_FOLDER = 40  #: in bytes; Ray's sockets are up to 67 below it, and Linux takes 107
NAME_LENGTH = 8  #: of a folder in `temporary_parent`
OTHERS = 0o077  #: the bits of a mode that let other users in
OTHERS_WRITE = 0o022


def ray_folder(data: Path, name: str) -> Path:
    """Return one of Ray's temporary folders: below the data folder if that path is short enough for sockets.

    It is the same each time. Raises StorageUnusable when its parent can't be made private.
    """
    folder = data / "ray" / name
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        folder = temporary_parent() / hashlib.sha256(os.fsencode(folder)).hexdigest()[:NAME_LENGTH]
    ensure_private(folder.parent)
    return _made(folder)


def new_ray_folder() -> Path:
    """Create a folder for a Ray that ends with this process. Raises StorageUnusable."""
    parent = ensure_private(temporary_parent())
    try:
        return Path(tempfile.mkdtemp(dir=parent, prefix=""))
    except OSError as error:
        raise _unusable(parent, error) from error


def temporary_parent() -> Path:
    """Return this user's parent of temporary folders: in TMPDIR, or in /tmp where that path is too long for sockets."""
    parents = (Path(root) / f"haloctl-{os.geteuid()}" for root in (tempfile.gettempdir(), "/tmp"))
    return next(parent for parent in parents if len(os.fsencode(parent)) + 1 + NAME_LENGTH <= LONGEST_FOLDER)


def ensure_private(folder: Path) -> Path:
    """Return a folder once only this user can enter it; it is made if it is missing.

    Raises StorageUnusable where it is a link, another user owns it, or others could write to it until now.
    """
    _made(folder)
    try:
        status = folder.lstat()
        if reason := _reason_to_refuse(status):
            raise StorageUnusable(f"folder {folder}", reason.format(folder=folder))
        if status.st_mode & OTHERS:
            folder.chmod(0o700)
    except OSError as error:
        raise _unusable(folder, error) from error
    return folder


def _reason_to_refuse(status: os.stat_result) -> str:
    if not stat.S_ISDIR(status.st_mode):
        return "it is a link or a file where Ray's folders should be; remove it, or set TMPDIR to a folder of your own"
    if status.st_uid != os.geteuid():
        return "another user owns it; set TMPDIR to a folder of your own"
    if status.st_mode & OTHERS_WRITE:
        return "other users could write to it; check what is in it, then run chmod 700 {folder}"
    return ""


def _made(folder: Path) -> Path:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    except OSError as error:
        raise _unusable(folder, error) from error
    return folder


def _unusable(folder: Path, error: OSError) -> StorageUnusable:
    return StorageUnusable(f"folder {folder}", f"{error.strerror}; Ray needs it for its sockets")
