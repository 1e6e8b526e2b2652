"""A disk, database or cluster that can't be used is reported in one message, and nothing breaks."""

import json
import os
import re
import secrets
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.schema.tables import VERSION_TABLE
from tests.acceptance.haloctl import Done, Haloctl, opened
from tests.acceptance.job_specs import ONE_EXPORT
from tests.integration.disks import fill, small_disk

__all__ = ["small_disk"]


def assert_told(done: Done, code: int, *phrases: str) -> None:
    """One message, of a command or of a daemon, and the exit code."""
    assert (done.code, done.out) == (code, ""), done.err
    line = done.err.splitlines()[-1]
    assert line.startswith("haloctl: ") or re.match(r"\S+Z error (head|node): ", line)
    for words in phrases:
        assert words in line
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", [("submit", "demo"), ("list",), ("db", "upgrade")])
def test_a_file_in_the_data_folder_s_place_is_told(temporary: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    with opened(tmp_path, temporary) as haloctl:
        haloctl.data.write_text("in the way")
        assert_told(haloctl.run(*command), 6, str(haloctl.data), "HALOCTL_DATA")
        assert haloctl.data.read_text() == "in the way"


@pytest.fixture
def read_only(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder that this user can't write to; root needs a read-only file system for that."""
    if os.geteuid() == 0:
        folder: Path = request.getfixturevalue("small_disk")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield folder
    else:
        folder = tmp_path / "read-only"
        folder.mkdir(mode=0o500)
        yield folder
        folder.chmod(0o700)


@pytest.mark.parametrize("command", [("submit", "demo"), ("list",)])
@pytest.mark.parametrize("place", [".", "new/data"])
def test_a_data_folder_that_can_t_be_written_is_told(
    temporary: Path, tmp_path: Path, read_only: Path, command: tuple[str, ...], place: str
) -> None:
    haloctl = Haloctl(tmp_path, temporary, HALOCTL_DATA=str(read_only / place))
    assert_told(haloctl.run(*command), 6, str(read_only / place), "HALOCTL_DATA")


def test_a_dry_run_needs_no_data_folder(temporary: Path, tmp_path: Path, read_only: Path) -> None:
    haloctl = Haloctl(tmp_path, temporary, HALOCTL_DATA=str(read_only / "new"))
    assert "export tiny-llama-FP16-TP1" in haloctl.answer("submit", haloctl.job(**ONE_EXPORT), "--dry-run")


def test_a_disk_without_room_for_the_database_is_told(temporary: Path, known_model: Path, small_disk: Path) -> None:
    with opened(small_disk / "home", temporary, known_model) as haloctl:
        job = haloctl.job(**ONE_EXPORT)
        fill(small_disk)
        assert_told(haloctl.run("submit", job), 6, "haloctl.db", "the disk is full", "make room")
        (small_disk / "filling").unlink()
        assert haloctl.json("list") == []
        haloctl.answer("submit", job)


def test_a_disk_that_fills_up_blames_the_disk_and_leaves_nothing_half_written(
    temporary: Path, known_model: Path, small_disk: Path
) -> None:
    with opened(small_disk / "home", temporary, known_model) as haloctl:
        done = haloctl.run("submit", haloctl.job(**ONE_EXPORT), "--wait")  # its parameters alone are 2.6 MB
        assert done.code == 3
        assert "Traceback" not in done.err
        (task,) = haloctl.tasks(haloctl.only_job()["job"]).values()
        assert task["failure"]["kind"] == "out_of_disk"
        assert task["attempts"] == 3
        assert list((haloctl.data / "work").iterdir()) == []
        assert {row["kind"] for row in haloctl.json("artifacts")} <= {"log"}
        assert [path.name for path in haloctl.data.rglob("*.part")] == []
        haloctl.until_gone()


@pytest.fixture
def newer(temporary: Path, known_model: Path, tmp_path: Path) -> Haloctl:
    """A haloctl with a database that a newer haloctl has upgraded."""
    with opened(tmp_path, temporary, known_model) as haloctl:
        haloctl.answer("db", "upgrade")
        connection = sqlite3.connect(haloctl.data / "haloctl.db")
        with connection:
            connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        connection.close()
        return haloctl


def test_a_database_of_a_newer_version_is_told_and_left_alone(newer: Haloctl) -> None:
    before = (newer.data / "haloctl.db").read_bytes()
    for command in (("list",), ("submit", newer.job(**ONE_EXPORT)), ("db", "upgrade"), ("matrix", "--json")):
        assert_told(newer.run(*command), 6, "haloctl.db", "newer", "9999", "upgrade haloctl")
    assert (newer.data / "haloctl.db").read_bytes() == before


def test_a_file_that_is_no_database_is_told_and_left_alone(fresh: Haloctl) -> None:
    (fresh.data / "haloctl.db").write_text("these are notes, and somebody wants them\n" * 100)
    assert_told(fresh.run("list"), 6, "haloctl.db", "not a SQLite database")
    assert (fresh.data / "haloctl.db").read_text().startswith("these are notes")


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("nonsense", 2, "HALOCTL_DATABASE_URL"),
        ("mysql://somebody:secret@host/name", 2, "mysql is not supported"),
        ("sqlite://", 2, "names no file"),
        ("sqlite:////no/such/folder/haloctl.db", 6, "can't be opened"),
        ("postgresql://somebody:secret@127.0.0.1:1/name", 6, "127.0.0.1"),
    ],
)
def test_a_database_url_that_can_t_be_used_is_told_without_its_password(
    temporary: Path, tmp_path: Path, url: str, code: int, message: str
) -> None:
    with opened(tmp_path, temporary, HALOCTL_DATABASE_URL=url) as haloctl:
        done = haloctl.run("list")
        assert_told(done, code, message)
        assert "secret" not in done.err


def test_a_head_whose_cluster_nobody_answers_for_says_so_and_tries_again(fresh: Haloctl) -> None:
    head = fresh.start("head", "--ray-address", "127.0.0.1:1")
    head.until_says("; trying again")
    head.signal(signal.SIGTERM)
    done = head.end()
    assert done.code == 0, done.err
    assert done.err.count("trying again") == 1
    assert "Ray at 127.0.0.1:1: " in done.err
    fresh.until_gone()


def test_a_node_is_told_that_what_it_is_to_join_is_no_ray(fresh: Haloctl) -> None:
    token = fresh.folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    with socket.create_server(("127.0.0.1", 0)) as listens:
        where = "{}:{}".format(*listens.getsockname())
        impatient = fresh.but_with(RAY_py_gcs_connect_timeout_s="1")
        done = impatient.run("node", "--head", where, "--token-file", str(token), "--name", "n1")
    assert_told(done, 6, f"the cluster at {where}: ", "does not answer as Ray does", "--head")
    fresh.until_gone()


def test_a_wrong_number_of_devices_is_told(fresh: Haloctl) -> None:
    assert_told(fresh.but_with(HALOCTL_CPU_DEVICES="many").run("nodes"), 2, "HALOCTL_CPU_DEVICES", "'many'")


def test_a_reader_that_goes_away_is_no_error(fresh: Haloctl) -> None:
    fresh.answer("submit", fresh.job(**ONE_EXPORT))
    for options in ((), ("--json",)):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as closed:
            done = fresh.run("list", *options, stdout=closed)
        assert (done.code, done.err) == (0, "")
    assert json.loads(fresh.answer("list", "--json"))
