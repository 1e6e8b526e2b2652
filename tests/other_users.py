"""Processes of another user, who is not in our groups."""

import os
import subprocess

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")


def as_nobody(*command: object) -> int:
    """Run a command as another user; returns its exit code."""
    argv = [str(word) for word in command]
    return subprocess.run(argv, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, timeout=60).returncode


def can_enter(folder: object) -> bool:
    """Whether another user can list a folder or look up anything in it."""
    return as_nobody("ls", folder) == 0 or as_nobody("stat", f"{folder}/.") == 0
