"""A server as a child process: started, waited for, and ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from workers.llm.command_line import EXIT_FAILED, ProgramFailed

END_S = 10.0  #: within which a server ends after SIGTERM
LOOK_S = 0.02


@contextmanager
def running_server(command: Sequence[str], ready: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """Run a server; give its URL once it answers. Raises ProgramFailed where it ends by itself, or not in time."""
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, *command, f"--ready={ready}"], stdin=subprocess.DEVNULL, env={**os.environ, **variables}
    )
    try:
        yield _wait_for(ready, process)
        if process.poll() is not None:
            raise ProgramFailed(f"the server ended by itself with exit code {process.returncode}", EXIT_FAILED)
        process.send_signal(signal.SIGTERM)
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"the server did not end within {END_S:.0f} s of SIGTERM", EXIT_FAILED) from None
    finally:
        process.kill()
        process.wait()


def _wait_for(ready: Path, process: "subprocess.Popen[bytes]") -> str:
    while process.poll() is None:
        if ready.exists():
            return str(json.loads(ready.read_text())["url"])
        time.sleep(LOOK_S)
    raise ProgramFailed(f"the server did not start: exit code {process.returncode}", EXIT_FAILED)
