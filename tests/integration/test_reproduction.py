"""Scripts that do an attempt again, run by a real shell with tools of the test's own."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from db import reports
from db.engine import open_database
from db.reports import AttemptRow, TaskRow
from db.store import Store
from jobs.task import Artifact, Command, Process
from orchestrator.reproduction import manifest, script
from tests.stored_jobs import submit, succeed

NASTY = 'it\'s "$HOME" `id` \\ {a}\n* new'
TELLS = """\
import os, sys
values = sorted(f"{name}={value}" for name, value in os.environ.items())
open("outputs/told", "a").write("\\0".join([*sys.argv[1:], *values, os.getcwd()]) + "\\1")
"""


def sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


@pytest.fixture
def stored(tmp_path: Path) -> tuple[AttemptRow, TaskRow]:
    """An attempt that succeeded, as the database tells of it."""
    with open_database(f"sqlite:///{tmp_path}/haloctl.db", create=True) as database:
        task = f"{submit(Store(database))}-02"
        succeed(Store(database), task)
        return reports.attempt(database, f"{task}-1"), reports.task(database, task)


@pytest.fixture
def attempt(stored: tuple[AttemptRow, TaskRow], tmp_path: Path) -> AttemptRow:
    """One of two commands that tell of themselves, with an input and names that shells stumble over."""
    tool = tmp_path / "the tools" / "tells"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable} -I\n{TELLS}")
    tool.chmod(0o755)
    (tmp_path / "model").write_text("module {}")
    return replace(
        stored[0],
        commands=(Command(("tells", NASTY, ""), {"MORE": NASTY}), Command(("tells", "second"))),
        processes=tuple(Process((str(tool),), 0, 1.0, 1) for _ in range(2)),
        environment={"LC_ALL": "C", "NASTY": NASTY},
        inputs={"export": (Artifact("model.mlir", "mlir", sha256("module {}"), 9),)},
        artifacts=(),
        node="a\nrm -rf $HOME",
    )


def run(attempt: AttemptRow, task: TaskRow, folder: Path) -> "subprocess.CompletedProcess[str]":
    text = script(manifest(attempt, task, lambda _: str(folder / "model")))
    environment = {**os.environ, "CALLERS_OWN": "1"}
    command = ["/bin/sh", "-s", "again"]
    return subprocess.run(
        command, input=text, cwd=folder, env=environment, capture_output=True, text=True, timeout=20, check=False
    )


def test_commands_get_the_very_arguments_and_the_very_environment(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path
) -> None:
    done = run(attempt, stored[1], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    again = tmp_path / "again"
    first, second = ((again / "outputs" / "told").read_text().split("\1"))[:2]
    common = ["LC_ALL=C", f"NASTY={NASTY}", f"TMPDIR={again}/tmp"]
    assert first.split("\0") == [NASTY, "", "LC_ALL=C", f"MORE={NASTY}", *common[1:], str(again)]
    assert second.split("\0") == ["second", *common, str(again)]
    assert (again / "inputs" / "export" / "model.mlir").read_text() == "module {}"
    assert f"outputs are in {again}/outputs" in done.stdout


def test_a_damaged_input_ends_it_before_anything_runs(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path
) -> None:
    (tmp_path / "model").write_text("module ()")
    done = run(attempt, stored[1], tmp_path)
    assert done.returncode == 1
    assert "inputs/export/model.mlir: FAILED" in done.stdout
    assert list((tmp_path / "again" / "outputs").iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path
) -> None:
    (tmp_path / "again").mkdir()
    assert run(attempt, stored[1], tmp_path).returncode != 0
    assert list((tmp_path / "again").iterdir()) == []


@pytest.mark.parametrize(("content", "code"), [("as before", 0), ("otherwise", 1)])
def test_it_ends_well_only_if_the_outputs_are_what_they_were(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path, content: str, code: int
) -> None:
    Path(attempt.processes[0].argv[0]).write_text(f"#!/bin/sh\necho '{content}' > outputs/model.vmfb\n")
    vmfb = Artifact("model.vmfb", "vmfb", sha256("as before\n"), 10)
    log = Artifact("log", "log", sha256("other times"), 11)
    assert run(replace(attempt, artifacts=(vmfb, log)), stored[1], tmp_path).returncode == code


def test_what_failed_fails_again_with_the_tools_own_exit_code(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path
) -> None:
    Path(attempt.processes[0].argv[0]).write_text("#!/bin/sh\nexit 7\n")
    done = run(attempt, stored[1], tmp_path)
    assert (done.returncode, done.stdout.count("outputs are in")) == (7, 0)


def test_a_tool_that_never_ran_is_looked_for_beside_those_that_did(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path
) -> None:
    assert run(replace(attempt, processes=attempt.processes[:1]), stored[1], tmp_path).returncode == 0


def test_the_header_is_nothing_but_comments_and_pins_every_package(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow]
) -> None:
    text = script(manifest(attempt, stored[1], str))
    header = text[: text.index("set -eu")].splitlines()
    assert all(line.startswith("#") for line in header)
    assert any(line.endswith("pip install torch==2.13.1") for line in header)


def test_where_no_tool_was_found_their_folder_has_to_be_named(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path
) -> None:
    done = run(replace(attempt, processes=()), stored[1], tmp_path)
    assert done.returncode != 0
    assert "name the folder" in done.stderr
