"""Stages of these tests tell by files of the test what they do, and keep no caches in the home folder."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALOCTL_STAGE_WRITABLE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
