"""A server as a child process: started, waited for, and ended."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from workers.llm.command_line import EXIT_FAILED, ProgramFailed

END_S = 10.0  #: within which a server ends after SIGTERM
LOOK_S = 0.05
HEALTH_TIMEOUT_S = 5.0


@contextmanager
def running_server(
    arguments: Sequence[str], variables: Mapping[str, str], find_url: Callable[[], str | None]
) -> Iterator[str]:
    """Run a server, with these arguments of python; give its URL once `find_url` returns it.

    Raises ProgramFailed where it ends by itself, or not in time.
    """
    process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL, env={**os.environ, **variables})
    try:
        yield _wait_for(process, find_url)
        if process.poll() is not None:
            raise ProgramFailed(f"the server ended by itself with exit code {process.returncode}", EXIT_FAILED)
        process.send_signal(signal.SIGTERM)
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"the server did not end within {END_S:.0f} s of SIGTERM", EXIT_FAILED) from None
    finally:
        process.kill()
        process.wait()


def announced_url(ready: Path) -> str | None:
    """Return the URL that a server has written to a file, if it has."""
    return str(json.loads(ready.read_text())["url"]) if ready.exists() else None


def healthy_url(port: int) -> str | None:
    """Return the URL of a server on loopback if it says that it is healthy."""
    url = f"http://127.0.0.1:{port}"
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=HEALTH_TIMEOUT_S):
            return f"{url}/v1"
    except OSError:
        return None


def _wait_for(process: "subprocess.Popen[bytes]", find_url: Callable[[], str | None]) -> str:
    while process.poll() is None:
        if url := find_url():
            return url
        time.sleep(LOOK_S)
    raise ProgramFailed(f"the server did not start: exit code {process.returncode}", EXIT_FAILED)
