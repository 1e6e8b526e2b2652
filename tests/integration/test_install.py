"""infra/install.sh, on a small project: it installs what has the pinned hash, and nothing else."""

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests import toolchain_wheels

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
#: Builds an editable haloctl that imports nothing.
BACKEND = """
import zipfile
def build_editable(folder, settings=None, metadata=None):
    info, name = "haloctl-0.1.dist-info", "haloctl-0.1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: haloctl\\nVersion: 0.1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that needs a teapot, of which there are two."""
    root = tmp_path / "project"
    (root / "infra" / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "infra" / "install.sh", root / "infra")
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "backend.py").write_text(BACKEND)
    (root / "constraints.txt").write_text("teapot==1.0\n")
    true = toolchain_wheels.wheel(tmp_path / "true", "teapot", "1.0", {"teapot.py": "is_true = True\n"})
    toolchain_wheels.wheel(tmp_path / "false", "teapot", "1.0", {"teapot.py": "is_true = False\n"})
    digest = sha256(true.read_bytes()).hexdigest()
    (root / "infra" / "requirements" / "base.txt").write_text(f"teapot==1.0 --hash=sha256:{digest}\n")
    return root


def install(project: Path, packages: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return subprocess.run(
        ["infra/install.sh", sys.executable, str(project / "venv"), "."],
        cwd=project,
        env={
            **inherited,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(project.parent / packages),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_package_with_another_hash_is_not_installed(project: Path) -> None:
    refused = install(project, "false")
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    installed = install(project, "true")
    assert installed.returncode == 0, installed.stderr
    say = [str(project / "venv" / "bin" / "python"), "-c", "import teapot, torch; print(teapot.is_true)"]
    assert subprocess.run(say, capture_output=True, text=True, check=True).stdout == "True\n"
