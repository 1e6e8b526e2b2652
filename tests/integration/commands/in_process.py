"""The command line in this process, on a data folder of the test's."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator import cli


class Said(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]
Answer = Callable[..., str]


@pytest.fixture
def haloctl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HALOCTL_DATABASE_URL", raising=False)
    monkeypatch.setenv("HALOCTL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["haloctl", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Said(int(end.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def answer(haloctl: Command) -> Answer:
    """What a command prints that ends with the exit code that is expected: on stderr where it is not 0."""

    def run(*arguments: str, code: int = 0) -> str:
        done = haloctl(*arguments)
        assert done.code == code, done.err
        return done.err if code else done.out

    return run


def rows(haloctl: Command, *arguments: str) -> list[dict[str, Any]]:
    done = haloctl(*arguments, "--json")
    assert done.code == 0, done.err
    parsed: list[dict[str, Any]] = json.loads(done.out)
    return parsed
