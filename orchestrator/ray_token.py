"""The token that a local Ray asks of whoever talks to it: in a file that only its user can read.

Left to itself Ray 2.60 writes one to ~/.ray/auth_token, readable by everybody on the machine.
"""

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def use_own_token(data: Path) -> None:
    """Have Ray use the data folder's token, made when it is missing; what the user has set goes before it.

    To be called before ray is imported.
    """
    if any(name in os.environ for name in VARIABLES):
        return
    path = data / "ray-token"
    if not path.exists():
        _write_once(path, secrets.token_hex(32))
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def _write_once(path: Path, text: str) -> None:
    """Write a whole file with mode 0600; of several writers the first one's stays."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".ray-token-") as fresh:
        fresh.write(text)
        fresh.flush()
        with suppress(FileExistsError):
            os.link(fresh.name, path)
