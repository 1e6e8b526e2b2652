"""Running `ray start` to its end, and telling in one line why it failed."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.errors import ClusterUnreachable
from orchestrator.cluster.ray_program import REFUSED, SILENT

TIMEOUT_S = 120.0
LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \S+\s+[A-Z]+ \S+:\d+ -- ")
NATIVE_LOG_LINE = re.compile(r"^\[\d{4}-\d\d-\d\d \S+ [A-Z] \d+ \d+\]")  #: what Ray's C++ thinks on the way

#: What is wrong and what to do, by the exit code of `ray start`.
REASONS = {
    REFUSED: "it does not know the token that it was given; take a copy of the token file that its head names",
    SILENT: "what listens there does not answer as Ray does; give --head as `haloctl head` prints it when it starts",
}
#: The same by what it says. Its own words are shown where nothing is known.
SAYINGS = {"RuntimeError: Version mismatch": "its Ray or its Python is another one; install here what its head has"}


def start(command: Sequence[str], environment: Mapping[str, str], log: Path, where: str) -> None:
    """Start Ray's processes, which live on; what `ray start` says goes to `log`. Raises ClusterUnreachable."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,  # a Ctrl-C is not for them
        )
        try:
            exit_code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise ClusterUnreachable(where, f"`ray start` did not come to an end; {log} has what it said") from error
    expect_success(exit_code, log, where)


def expect_success(exit_code: int, log: Path, where: str) -> None:
    """Raise ClusterUnreachable with what a failed `ray start` said last."""
    if reason := REASONS.get(exit_code):
        raise ClusterUnreachable(where, reason)
    if exit_code < 0:
        raise ClusterUnreachable(where, f"`ray start` was killed by signal {-exit_code}; {log} has what it said")
    if exit_code:
        text = log.read_text(errors="replace")
        known = next((reason for saying, reason in SAYINGS.items() if saying in text), None)
        raise ClusterUnreachable(where, f"{known or _last_words(text)}; more in {log}")


def _last_words(text: str) -> str:
    lines = [line for line in map(str.strip, text.splitlines()) if line and not NATIVE_LOG_LINE.match(line)]
    return f"`ray start` failed: {LOG_LINE.sub('', lines[-1])}" if lines else "`ray start` ended without a word"
