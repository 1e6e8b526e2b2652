"""Folders that all workers of pytest-xdist share in one run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is one of several."""
    return hasattr(config, "workerinput")


def common_folder(config: pytest.Config, folder: Path) -> Path:
    """Return a temporary folder that all workers of this run share, from the worker's own."""
    return folder.parent if is_worker(config) else folder


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder that the first worker fills; the others wait for it."""
    part = folder.with_name(f"{folder.name}.part")
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            shutil.rmtree(part, ignore_errors=True)
            make(part)
            part.rename(folder)
    return folder
