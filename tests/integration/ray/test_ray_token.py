"""A local Ray answers its own user only: the token is in a file of mode 0600, and clients without it are refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SERVE = """
import sys
from pathlib import Path
from orchestrator.ray_executor import RayExecutor
executor = RayExecutor(Path(sys.argv[1]))
executor.ensure_ready()
import ray
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
executor.close()
"""
JOIN = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print('joined')"


def join(address: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    argv = [sys.executable, "-c", JOIN, address]
    kept["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # 127.0.0.1 stays what it is
    return subprocess.run(argv, env=kept | env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_only_who_has_the_token_may_join_and_nothing_is_left_in_the_home_folder(tmp_path: Path, home: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"HOME": str(home)}
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(data)], env=kept, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("127.0.0.1:")
        token = data / "ray-token"
        assert token.stat().st_mode & 0o777 == 0o600
        stranger = join(address, HOME=str(home), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
        assert stranger.returncode != 0
        assert "joined" not in stranger.stdout
        friend = join(address, HOME=str(home), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
        assert "joined" in friend.stdout, friend.stderr
        server.communicate("")
    assert not (home / ".ray").exists()
