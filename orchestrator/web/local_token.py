"""The token of the user whose server it is: in a file that only they can read."""

import os
import secrets
import stat
from pathlib import Path

from jobs.errors import StorageUnusable


def token_file(data: Path) -> Path:
    """Return the path of the token of a data folder."""
    return data / "web-token"


def ensure_token(data: Path) -> str:
    """Return the token, written if it is missing. Raises StorageUnusable for a file that others can read."""
    path = token_file(data)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise StorageUnusable(f"token file {path}", f"{error.strerror}; it can't be written") from error
    with os.fdopen(descriptor, "w") as file:
        token = secrets.token_urlsafe(32)
        file.write(f"{token}\n")
    return token


def read_token(path: Path) -> str:
    """Return the token in a file. Raises StorageUnusable where it can't be read, or others can read it."""
    try:
        with path.open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read(1000).strip()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise StorageUnusable(f"token file {path}", f"{reason}; give a file with a token") from error
    if mode & 0o077:
        raise StorageUnusable(f"token file {path}", f"other users can read it (mode {mode:04o}); run chmod 600 {path}")
    if not token:
        raise StorageUnusable(f"token file {path}", "it is empty; remove it, and `haloctl web` writes another")
    return token
