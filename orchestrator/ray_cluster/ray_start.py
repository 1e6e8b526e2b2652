"""Runs `ray start` to its end, and explains in one line why it failed."""

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jobs.errors import ClusterUnreachable
from orchestrator.ray_cluster.ray_program import REFUSED, SILENT

TIMEOUT_S = 120.0
POLL_S = 0.1
LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \S+\s+[A-Z]+ \S+:\d+ -- ")
NATIVE_LOG_LINE = re.compile(r"^\[\d{4}-\d\d-\d\d \S+ [A-Z] \d+ \d+\]")  #: of Ray's C++ code

#: Problems and remedies, by the exit code of `ray start`.
EXIT_CODES = {
    REFUSED: "it does not know the token that it was given; take a copy of the token file that its head names",
    SILENT: "what listens there does not answer as Ray does; give --head as `haloctl head` prints it when it starts",
}
#: Problems and remedies, by a part of the output of `ray start`; the output is shown when none is known.
OUTPUTS = {"RuntimeError: Version mismatch": "its Ray or its Python is another one; install here what its head has"}


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    where: str,
    give_up: Callable[[], str | None] = lambda: None,
) -> None:
    """Start Ray's processes, which live on; the output goes to `log`. Raises ClusterUnreachable.

    `give_up` is asked all the time, and returns a reason to end the start.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,  # Ctrl-C must not reach them
        )
        until = time.monotonic() + TIMEOUT_S
        while (exit_code := process.poll()) is None:
            reason = give_up() or (f"`ray start` did not end in time; see {log}" if time.monotonic() > until else None)
            if reason:
                process.kill()
                process.wait()
                raise ClusterUnreachable(where, reason)
            time.sleep(POLL_S)
    expect_success(exit_code, log, where)


def expect_success(exit_code: int, log: Path, where: str) -> None:
    """Raise ClusterUnreachable with the last output line if `ray start` failed."""
    if reason := EXIT_CODES.get(exit_code):
        raise ClusterUnreachable(where, reason)
    if exit_code < 0:
        raise ClusterUnreachable(where, f"`ray start` was killed by signal {-exit_code}; see {log}")
    if exit_code:
        text = log.read_text(errors="replace")
        known = next((reason for output, reason in OUTPUTS.items() if output in text), None)
        raise ClusterUnreachable(where, f"{known or _last_line(text)}; more in {log}")


def _last_line(text: str) -> str:
    lines = [line for line in map(str.strip, text.splitlines()) if line and not NATIVE_LOG_LINE.match(line)]
    return f"`ray start` failed: {LOG_LINE.sub('', lines[-1])}" if lines else "`ray start` failed without output"
