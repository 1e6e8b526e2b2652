"""Running `ray start` to its end, and telling in one line why it failed."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.errors import ClusterUnreachable
from orchestrator.cluster.ray_program import REFUSED

TIMEOUT_S = 120.0
LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \S+\s+[A-Z]+ \S+:\d+ -- ")


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
    if exit_code == REFUSED:
        remedy = "take a copy of the token file that its head names when it starts"
        raise ClusterUnreachable(where, f"it does not know the token that it was given; {remedy}")
    if exit_code < 0:
        raise ClusterUnreachable(where, f"`ray start` was killed by signal {-exit_code}; {log} has what it said")
    if exit_code:
        raise ClusterUnreachable(where, f"{_last_words(log.read_text(errors='replace'))}; more in {log}")


def _last_words(text: str) -> str:
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    return LOG_LINE.sub("", lines[-1]) if lines else "`ray start` ended without a word"
