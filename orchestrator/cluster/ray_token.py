"""The token that a Ray asks of whoever talks to it: in a file that only its user can read, or in the environment.

Left to itself Ray 2.60 writes one to ~/.ray/auth_token, readable by everybody on the machine.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from jobs.errors import ClusterUnreachable

FILE_VARIABLE = "HALOCTL_RAY_TOKEN_FILE"
VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
MODE = {"RAY_AUTH_MODE": "token"}  #: also on loopback, for a machine has more than one user

Say = Callable[[str], None]


def use_own_token(data: Path) -> None:
    """Have Ray use the data folder's token, made when it is missing; what the user has set goes before it.

    To be called before ray is imported.
    """
    if any(name in os.environ for name in VARIABLES):
        return
    os.environ |= {**MODE, "RAY_AUTH_TOKEN_PATH": str(made(data))}


def own_file(data: Path) -> Path:
    """Where a head keeps its token."""
    return data / "ray-token"


def made(data: Path) -> Path:
    """The head's token file, which is written when it is missing."""
    path = own_file(data)
    if not path.exists():
        _write_once(path, secrets.token_hex(32))
    return path


def given(data: Path, file: Path | None, say: Say, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What Ray's processes are told of the token: of `file`, or else of the environment, or of the data folder.

    Raises ClusterUnreachable where there is none or it can't be used: others may not be able to read it. A file of this
    user's own is closed to others, and `say` is told so.
    """
    named = file or _path(environment.get(FILE_VARIABLE))
    if named is None and environment.get("RAY_AUTH_TOKEN"):
        return {**MODE, "RAY_AUTH_TOKEN": environment["RAY_AUTH_TOKEN"]}
    path = named or _path(environment.get("RAY_AUTH_TOKEN_PATH")) or own_file(data)
    if named is None and not path.exists():
        remedy = f"copy the head's token file here and name it by --token-file or {FILE_VARIABLE}"
        raise ClusterUnreachable("no token for the cluster", remedy)
    _expect_private(path, say)
    return {**MODE, "RAY_AUTH_TOKEN_PATH": str(path.absolute())}


def use(token: Mapping[str, str]) -> None:
    """Have this process's Ray use a token. To be called before ray is imported."""
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ |= token


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None


def _expect_private(path: Path, say: Say) -> None:
    where = f"token file {path}"
    try:
        found = path.stat()
        if not path.read_text().strip():
            raise ClusterUnreachable(where, "it is empty; copy it from the head again")
    except OSError as error:
        raise ClusterUnreachable(where, f"{error.strerror}; copy it from the head, for yourself alone") from error
    if not stat.S_IMODE(found.st_mode) & 0o077:
        return
    try:
        path.chmod(0o600)
    except OSError as error:
        raise ClusterUnreachable(where, "others can read it; use a copy of your own with mode 0600") from error
    say(f"{where} could be read by others; its mode is 0600 now")


def _write_once(path: Path, text: str) -> None:
    """Write a whole file with mode 0600; of several writers the first one's stays."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".ray-token-") as fresh:
        fresh.write(text)
        fresh.flush()
        with suppress(FileExistsError):
            os.link(fresh.name, path)
