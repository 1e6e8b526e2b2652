"""Running uv: with pip's settings as well as its own, under a guard, and what its words mean."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.errors import IndexUnreachable, StorageUnusable, ToolchainUnusable
from jobs.task import Command
from workers.failures import DISK_FULL, read_log
from workers.processes import Cancellation, End, Guarded

TIMEOUT_S = 3600.0
SAID_CHARACTERS = 4000

PASSED_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "NETRC", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
    | {"all_proxy", "http_proxy", "https_proxy", "no_proxy"}
)
FIXED = {"NO_COLOR": "1", "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}

#: pip's settings with the variable that tells uv the same, and others that go before it.
FROM_PIP: dict[str, tuple[str, ...]] = {
    "PIP_INDEX_URL": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "PIP_EXTRA_INDEX_URL": ("UV_EXTRA_INDEX_URL", "UV_INDEX"),
    "PIP_FIND_LINKS": ("UV_FIND_LINKS",),
    "PIP_NO_INDEX": ("UV_OFFLINE",),
    "PIP_CERT": ("SSL_CERT_FILE",),
    "PIP_DEFAULT_TIMEOUT": ("UV_HTTP_TIMEOUT",),
}

#: What may be otherwise in a minute; uv has tried it a few times already.
NETWORK = re.compile(
    r"error sending request|Request failed after|dns error|timed out|Failed to fetch|error decoding response"
    r"|Connection (?:refused|reset|closed)|HTTP status server error|429 Too Many Requests",
    re.IGNORECASE,
)
REFUSED = re.compile(r"HTTP status client error \((?!429)")


def environment(cache: Path, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What uv sees: its own settings, pip's where it has none of them, and the way out of this machine."""
    passed = {name: value for name, value in inherited.items() if name in PASSED_NAMES or name.startswith("UV_")}
    for theirs, names in FROM_PIP.items():
        value = inherited.get(theirs)
        if value and not any(name in passed for name in names):
            # pip takes folders between blanks, uv between commas
            passed[names[0]] = ",".join(value.split()) if theirs == "PIP_FIND_LINKS" else value
    return {"UV_CACHE_DIR": str(cache), **passed, **FIXED}


def path() -> str:
    """uv's program: beside this interpreter, or on PATH."""
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise ToolchainUnusable("uv", "is not installed", "install the package uv beside haloctl")
    return found


def run(
    name: str,
    doing: str,
    commands: Sequence[Sequence[str]],
    folder: Path,
    cache: Path,
    cancellation: Cancellation | None = None,
) -> str:
    """Run commands in a folder one after another, and return what the last one printed.

    They end with this process. Raises ToolchainUnusable, IndexUnreachable, StorageUnusable: which toolchain, what could
    not be done (`doing`), and uv's own words.
    """
    log = folder / "log"
    seen = environment(cache)
    wanted = [Command(tuple(argv), seen) for argv in commands]
    with Guarded(wanted, folder, log, TIMEOUT_S, folder.name) as guarded:
        if cancellation:
            cancellation.calls(guarded.cancel)
        ended = guarded.wait()
    last = ended.ran[-1] if ended.ran else None
    said = read_log(log, last.log_start, last.log_end) if last else ""
    match ended.how:
        case End.DONE:
            return said
        case End.FAILED:
            raise failure(name, doing, said)
        case End.UNABLE:
            raise StorageUnusable(f"toolchain {name}", os.strerror(ended.errno))
        case End.TIMED_OUT:
            raise IndexUnreachable(f"toolchain {name}", f"uv was ended after {TIMEOUT_S:.0f} s\n{words_of(said)}")
        case _:
            raise IndexUnreachable(f"toolchain {name}", "uv was ended before it was done")


def failure(name: str, doing: str, said: str) -> ToolchainUnusable | IndexUnreachable | StorageUnusable:
    """What uv's words mean: it is the disk, or the network, or will not be otherwise the next time either."""
    words = words_of(said)
    if DISK_FULL.search(said):
        return StorageUnusable(f"toolchain {name}", f"the disk is full\n{words}")
    if NETWORK.search(said) and not REFUSED.search(said):
        return IndexUnreachable(f"toolchain {name}", words)
    return ToolchainUnusable(name, doing, words)


def words_of(said: str) -> str:
    """What uv printed, for people; it leaves out credentials by itself."""
    text = said.strip().removeprefix("error: ")
    return text if len(text) <= SAID_CHARACTERS else f"{text[:SAID_CHARACTERS]}..."
