"""Runs uv under a supervisor, with pip's settings as well as its own, and interprets its errors."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.errors import IndexUnreachable, StorageUnusable, ToolchainUnusable
from jobs.task import Command
from workers.failures import DISK_FULL, read_log
from workers.processes.cancellation import Cancellation
from workers.processes.client import EndReason, SupervisedRun

TIMEOUT_S = 3600.0
MESSAGE_CHARACTERS = 4000

PASSED_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "NETRC", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
    | {"all_proxy", "http_proxy", "https_proxy", "no_proxy"}
)
FIXED = {"NO_COLOR": "1", "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}

#: pip's settings with uv's variable for the same, and others that take precedence over it.
FROM_PIP: dict[str, tuple[str, ...]] = {
    "PIP_INDEX_URL": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "PIP_EXTRA_INDEX_URL": ("UV_EXTRA_INDEX_URL", "UV_INDEX"),
    "PIP_FIND_LINKS": ("UV_FIND_LINKS",),
    "PIP_NO_INDEX": ("UV_OFFLINE",),
    "PIP_CERT": ("SSL_CERT_FILE",),
    "PIP_DEFAULT_TIMEOUT": ("UV_HTTP_TIMEOUT",),
}

#: Errors that may be gone in a minute; uv has retried a few times already.
NETWORK = re.compile(
    r"error sending request|Request failed after|dns error|timed out|Failed to fetch|error decoding response"
    r"|Connection (?:refused|reset|closed)|HTTP status server error|429 Too Many Requests",
    re.IGNORECASE,
)
REFUSED = re.compile(r"HTTP status client error \((?!429)")


def environment(cache: Path, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return uv's environment: its own settings, pip's where it has none, proxies and certificates."""
    passed = {name: value for name, value in inherited.items() if name in PASSED_NAMES or name.startswith("UV_")}
    for pip_name, names in FROM_PIP.items():
        value = inherited.get(pip_name)
        if value and not any(name in passed for name in names):
            # pip separates folders by blanks, uv by commas
            passed[names[0]] = ",".join(value.split()) if pip_name == "PIP_FIND_LINKS" else value
    return {"UV_CACHE_DIR": str(cache), **passed, **FIXED}


def path() -> str:
    """Return the path of uv, beside this interpreter or on PATH; raises ToolchainUnusable where it is not installed."""
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        program = shutil.which("uv")
    if program is None:
        raise ToolchainUnusable("uv", "is not installed", "install the package uv beside haloctl")
    return program


def run(
    name: str,
    doing: str,
    commands: Sequence[Sequence[str]],
    folder: Path,
    cache: Path,
    cancellation: Cancellation | None = None,
) -> str:
    """Run commands in a folder one after another, and return what the last one printed.

    They end with this process. Raises ToolchainUnusable, IndexUnreachable or StorageUnusable with the toolchain's name,
    what could not be done (`doing`), and uv's own message.
    """
    log = folder / "log"
    variables = environment(cache)
    uv_commands = [Command(tuple(argv), variables) for argv in commands]
    with SupervisedRun(uv_commands, folder, log, TIMEOUT_S, folder.name) as supervised_run:
        if cancellation:
            cancellation.on_cancel(supervised_run.cancel)
        result = supervised_run.wait()
    last = result.commands[-1] if result.commands else None
    output = read_log(log, last.log_start, last.log_end) if last else ""
    match result.reason:
        case EndReason.DONE:
            return output
        case EndReason.FAILED:
            raise failure(name, doing, output)
        case EndReason.UNABLE:
            raise StorageUnusable(f"toolchain {name}", os.strerror(result.errno))
        case EndReason.TIMED_OUT:
            raise IndexUnreachable(f"toolchain {name}", f"uv timed out after {TIMEOUT_S:.0f} s\n{_message(output)}")
        case _:
            raise IndexUnreachable(f"toolchain {name}", "uv was ended before it was done")


def failure(name: str, doing: str, output: str) -> ToolchainUnusable | IndexUnreachable | StorageUnusable:
    """Return the error that uv's output means: of the disk, of the network, or of the packages themselves."""
    message = _message(output)
    if DISK_FULL.search(output):
        return StorageUnusable(f"toolchain {name}", f"the disk is full\n{message}")
    if NETWORK.search(output) and not REFUSED.search(output):
        return IndexUnreachable(f"toolchain {name}", message)
    return ToolchainUnusable(name, doing, message)


def _message(output: str) -> str:
    """Return uv's output for people; uv leaves out credentials by itself."""
    text = output.strip().removeprefix("error: ")
    return text if len(text) <= MESSAGE_CHARACTERS else f"{text[:MESSAGE_CHARACTERS]}..."
