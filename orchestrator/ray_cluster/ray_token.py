"""The token that authenticates clients to Ray: in a file that only its user can read, or in the environment.

By default Ray 2.60 writes one to ~/.ray/auth_token, readable by everybody on the machine.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jobs.errors import ClusterUnreachable
from workers import daemon_log

FILE_VARIABLE = "HALOCTL_RAY_TOKEN_FILE"
VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
MODE = {"RAY_AUTH_MODE": "token"}  #: also on loopback, because a machine has several users

logger = daemon_log.logger(__name__)


def use_own_token(data: Path) -> None:
    """Have Ray use the data folder's token, which is made if missing, unless the user has set one.

    Call it before ray is imported.
    """
    if any(name in os.environ for name in VARIABLES):
        return
    os.environ |= {**MODE, "RAY_AUTH_TOKEN_PATH": str(ensure_token(data))}


def token_file(data: Path) -> Path:
    """Return the path of a head's token."""
    return data / "ray-token"


def ensure_token(data: Path) -> Path:
    """Return the head's token file, written if it is missing."""
    path = token_file(data)
    if not path.exists():
        _write_once(path, secrets.token_hex(32))
    return path


def token_environment(data: Path, file: Path | None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for Ray's processes: from `file`, else from the environment, else from the data folder.

    Raises ClusterUnreachable when there is no token or others can read it. A file of this user is made private, with
    a warning.
    """
    named = file or _path(environment.get(FILE_VARIABLE))
    if named is None and environment.get("RAY_AUTH_TOKEN"):
        return {**MODE, "RAY_AUTH_TOKEN": environment["RAY_AUTH_TOKEN"]}
    path = named or _path(environment.get("RAY_AUTH_TOKEN_PATH")) or token_file(data)
    if named is None and not path.exists():
        remedy = f"copy the head's token file to this machine and give it as --token-file or {FILE_VARIABLE}"
        raise ClusterUnreachable("no token for the cluster", remedy)
    _expect_private(path)
    return {**MODE, "RAY_AUTH_TOKEN_PATH": str(path.absolute())}


def use(token: Mapping[str, str]) -> None:
    """Have this process's Ray use a token. Call it before ray is imported."""
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ |= token


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None


def _expect_private(path: Path) -> None:
    where = f"token file {path}"
    try:
        status = path.stat()
        if not path.read_text().strip():
            raise ClusterUnreachable(where, "it is empty; copy it from the head again")
    except OSError as error:
        raise ClusterUnreachable(where, f"{error.strerror}; copy it from the head, with mode 0600") from error
    if not stat.S_IMODE(status.st_mode) & 0o077:
        return
    try:
        path.chmod(0o600)
    except OSError as error:
        raise ClusterUnreachable(where, "other users can read it; use your own copy with mode 0600") from error
    logger.warning("%s was readable by others; its mode is 0600 now", where)


def _write_once(path: Path, text: str) -> None:
    """Write a file at once, with mode 0600; of several writers the first wins."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".ray-token-") as fresh:
        fresh.write(text)
        fresh.flush()
        with suppress(FileExistsError):
            os.link(fresh.name, path)
