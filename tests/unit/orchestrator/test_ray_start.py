"""Why `ray start` failed, in one line that says what to do."""

from pathlib import Path

import pytest

from jobs.errors import ClusterUnreachable
from orchestrator.ray_cluster.ray_program import REFUSED, SILENT
from orchestrator.ray_cluster.ray_start import expect_success

NATIVE = "[2025-11-21 17:00:01,123 W 4711 4711] ray_utils.cc:57: Failed to determine local IP via 8.8.8.8:53\n"
MISMATCH = """Traceback (most recent call last):
RuntimeError: Version mismatch: The cluster was started with:
    Ray: 2.60.0
    Python: 3.12.1
"""


@pytest.mark.parametrize(
    ("exit_code", "log", "reason"),
    [
        (REFUSED, "", "it does not know the token that it was given; take a copy"),
        (SILENT, NATIVE, "what listens there does not answer as Ray does; give --head as"),
        (-9, "", "`ray start` was killed by signal 9; see {log}"),
        (1, MISMATCH + NATIVE, "its Ray or its Python is another one; install here what its head has; more in {log}"),
        (1, f"2025-11-21 17:00:01,123\tERR node.py:12 -- no room\n{NATIVE}", "`ray start` failed: no room; more in"),
        (1, NATIVE, "`ray start` failed without output; more in {log}"),
    ],
)
def test_what_failed_is_told_with_what_to_do(tmp_path: Path, exit_code: int, log: str, reason: str) -> None:
    file = tmp_path / "ray.log"
    file.write_text(log)
    with pytest.raises(ClusterUnreachable) as told:
        expect_success(exit_code, file, "the cluster at h:1")
    assert str(told.value).startswith(f"the cluster at h:1: {reason.format(log=file)}")
    assert "8.8.8.8" not in str(told.value)
