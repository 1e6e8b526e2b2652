"""What a head knows is in no environment that others can read, and the head can't be dumped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from db.connection.errors import display_name, parse

HIDING = """
import ctypes, os, sys
from orchestrator import process_secrets
process_secrets.hide()
print("PGPASSWORD" in os.environ, os.environ["OTHER"], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)
sys.stdin.read()
"""


def test_secrets_are_gone_from_the_environment_that_proc_shows() -> None:
    secrets = {"PGPASSWORD": "hush", "HALOCTL_DATABASE_URL": "postgresql://halo:hush@db/halo", "OTHER": "kept"}
    argv = [sys.executable, "-c", HIDING]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=os.environ | secrets, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().split() == ["False", "kept", "0"]  # the last: it is not dumpable
        if os.geteuid() == 0:
            shown = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            assert b"PGPASSWORD=****" in shown
            assert b"OTHER=kept" in shown
            assert not [variable for variable in shown if b"hush" in variable]
        else:
            with pytest.raises(PermissionError):
                Path(f"/proc/{process.pid}/environ").read_bytes()
        process.communicate("", timeout=60)


def test_a_password_of_the_environment_is_kept_with_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "hush")
    assert parse("postgresql://halo@db/halo").password == "hush"
    assert parse("postgresql://halo:other@db/halo").password == "other"
    assert "hush" not in display_name(parse("postgresql://halo@db/halo"))
    assert parse("sqlite:////tmp/x.db") == make_url("sqlite:////tmp/x.db")
