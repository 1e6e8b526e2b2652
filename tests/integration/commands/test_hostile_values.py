"""Values that a hostile job, program or database brings: none moves the cursor, forges a row or leaves its folder."""

import csv
import gzip
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from db.connection.engine import open_database
from db.schema import tables
from db.store import Store
from jobs.plain_text import has_hidden
from jobs.state import Failure, FailureKind
from orchestrator.imports import database_files
from tests.integration.commands.in_process import Command, haloctl
from tests.stored_jobs import fail, submit, succeed

__all__ = ["haloctl"]

CLEAR, CLIPBOARD, REVERSED = "\x1b[2J\x1b[H", "\x1b]52;c;aGFsbw==\x07", "\u202etxt\u202c"
NAME = f"evil{CLEAR}{CLIPBOARD}{REVERSED}\x9b31m\n12345678  forged  succeeded\r"
FORMULA = '=HYPERLINK("http://evil")'


@pytest.fixture
def data(haloctl: Command, tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def job(data: Path) -> Iterator[str]:
    """A job whose names and messages are all hostile, as one who writes to the database can make it."""
    with open_database(f"sqlite:///{data}/haloctl.db", create=True) as database:
        store = Store(database)
        job = submit(store, submitted_by=FORMULA)
        fail(store, f"{job}-01", Failure(FailureKind.TOOL_FAILED, NAME, f"{CLEAR}{CLIPBOARD}\nlast line"))
        with database.writing() as connection:
            connection.execute(update(tables.jobs).values(name=NAME, model=NAME))
            connection.execute(update(tables.cells).values(model=NAME, variant=NAME))
            connection.execute(update(tables.tasks).values(subject=NAME, waits_for=NAME))
        yield job


def is_plain(text: str) -> bool:
    return not has_hidden(text.replace("\n", "").replace("\t", ""))


def test_answers_have_no_hidden_characters_and_no_forged_rows(haloctl: Command, job: str, data: Path) -> None:
    for command in (
        ("list",), ("list", "--csv"), ("show", job), ("show", f"{job}-01"), ("matrix", job), ("matrix", "--markdown"),
        ("query", "SELECT * FROM jobs"), ("query", "SELECT * FROM jobs", "--csv"), ("why", f"{job}-01"), ("report",),
        ("usage",), ("usage", "--by", "job,model", "--csv"),
        ("query", "SELECT * FROM tasks", "--markdown"), ("query", 'SELECT 1 AS "a\x1b[2J\nb"'), ("list", "--json"),
        ("query", "SELECT name, x FROM jobs\x1b[2J"), ("show", "\x1b[2J"), ("nonsense\x1b[2J",),
        ("report", "-o", "r.html"), ("matrix", "--svg", "m.svg"), ("import", "remove", "\u202e"), ("logs", f"{job}-01"),
    ):  # fmt: skip
        code, out, err = haloctl(*command)
        assert code in (0, 2, 4), (command, err)
        assert (is_plain(out), is_plain(err)) == (True, True), command
        assert not [line for line in out.splitlines() if line.startswith("12345678")], command
    assert len(haloctl("list")[1].splitlines()) == 2
    assert is_plain(Path("r.html").read_text())
    assert is_plain(Path("m.svg").read_text())
    assert json.loads(haloctl("list", "--json")[1])[0]["name"] == NAME


def test_a_spreadsheet_computes_nothing(haloctl: Command, job: str) -> None:
    rows = list(csv.DictReader(io.StringIO(haloctl("list", "--csv")[1])))
    assert [row["submitted_by"] for row in rows] == [f"'{FORMULA}"]
    sql = "SELECT -1.5 AS number, '-1.5' AS text, '@a' AS at, '+b' AS plus, '-c' AS minus, 'd' AS name"
    answer = haloctl("query", sql, "--csv")[1].splitlines()[1]
    assert answer == "-1.5,-1.5,'@a,'+b,'-c,d"


def test_a_terminal_gets_no_hidden_characters_but_colours(job: str, data: Path) -> None:
    for command in (("list",), ("show", f"{job}-01"), ("query", "SELECT name FROM jobs"), ("show", CLIPBOARD)):
        shown = on_terminal("haloctl", *command)
        for piece in (CLEAR, CLIPBOARD, REVERSED, "\x9b"):
            assert piece not in shown, command
        assert "\\x1b" in shown, command


def on_terminal(*command: str) -> str:
    """Run haloctl on a terminal of its own, and return all that the terminal got."""
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "orchestrator.cli", *command[1:]]
    with subprocess.Popen(
        program, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, cwd=Path(__file__).parents[3]
    ):
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # EIO: the other end is closed
            pass
    os.close(ours)
    return shown.decode(errors="surrogateescape")


def exported(job: str, data: Path, **changes: Any) -> Path:
    """Return a file of `db export` in which the first row of some tables has other values."""
    file = data / "good.gz"
    file.unlink(missing_ok=True)
    with open_database(f"sqlite:///{data}/haloctl.db", create=False) as database:
        database_files.write(database, file)
    with gzip.open(file, "rt") as stream:
        rows = [json.loads(line) for line in stream]
    columns = rows[0]["tables"]
    for place, value in changes.items():
        table, column = place.split("__")
        row = next(row for row in rows[1:] if row[0] == table)
        row[1 + columns[table].index(column)] = value
    evil = data / "evil.gz"
    with gzip.open(evil, "wt") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    return evil


EVIL_INPUTS = '{"export": [{"name": "../../a", "kind": "mlir", "sha256": "%s", "size_bytes": 1}]}' % ("0" * 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"artifacts__name": "../../home/.evilrc"}, {"artifacts__name": "/etc/passwd"}, {"artifacts__name": ".."},
        {"artifacts__name": "a\nb"}, {"artifacts__sha256": "../../../etc/passwd"}, {"tasks__stage": "../x"},
        {"attempts__lock": "../../x"}, {"attempts__inputs": EVIL_INPUTS}, {"attempts__inputs": '{"../x": []}'},
        {"attempts__inputs": '{"export": [{}]}'}, {"tasks__state": "great"}, {"tasks__settings": "[]"},
        {"attempts__commands": "[5]"}, {"jobs__submitted_at": "2020-01-01"}, {"jobs__priority": 2**40},
        {"jobs__name": "a\0b"}, {"jobs__name": "\ud800"}, {"jobs__timeout_s": float("inf")},
        {"jobs__spec": '{"a": NaN}'}, {"jobs__spec": "[" * 100_000}, {"jobs__id": "1" * 5000},
    ],
)  # fmt: skip
def test_a_hostile_database_is_not_imported_at_all(
    haloctl: Command, job: str, data: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = exported(job, data, **changes)
    monkeypatch.setenv("HALOCTL_DATABASE_URL", f"sqlite:///{data}/new.db")
    code, out, err = haloctl("db", "import", str(evil))
    assert (code, out) == (2, "")
    assert f"{evil}:" in err
    assert "Traceback" not in err
    assert json.loads(haloctl("list", "--json")[1]) == []


def test_names_in_the_database_never_lead_out_of_a_folder(haloctl: Command, data: Path, tmp_path: Path) -> None:
    with open_database(f"sqlite:///{data}/haloctl.db", create=True) as database:
        store = Store(database)
        job = submit(store)
        succeed(store, f"{job}-01")
        (tmp_path / "file").write_text("content")
        sha256 = haloctl("artifacts", "put", "file")[1].strip()
        before = sorted(outside(data))
        with database.writing() as connection:
            evil = {"name": "../../outside", "sha256": sha256, "size_bytes": 7}
            connection.execute(update(tables.artifacts).where(tables.artifacts.c.kind == "log").values(evil))
            connection.execute(
                update(tables.artifacts).where(tables.artifacts.c.kind != "log").values(sha256="../../x")
            )
    for command in (
        ("artifacts", "get", sha256), ("artifacts", "get", f"{job}-01/../../outside"), ("reproduce", f"{job}-01"),
        ("artifacts", "verify", "--all"), ("artifacts", "list"),
    ):  # fmt: skip
        code, _, err = haloctl(*command)
        assert code in (2, 4), (command, err)
        assert "Traceback" not in err
    assert sorted(outside(data)) == before


def outside(data: Path) -> Iterator[Path]:
    """Yield the files around the data folder, and not those that commands keep in it."""
    return (path for path in data.parents[1].rglob("*") if not path.is_relative_to(data))


def test_a_file_is_not_fetched_through_a_link(haloctl: Command, data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    sha256 = haloctl("artifacts", "put", "file")[1].strip()
    (tmp_path / "goal").symlink_to(tmp_path / "victim")
    (tmp_path / f".other.{sha256[:16]}.part").symlink_to(tmp_path / "victim")
    assert haloctl("artifacts", "get", sha256, "-o", "goal")[0] == 2
    assert haloctl("artifacts", "get", sha256, "-o", "other")[0] == 2
    assert not (tmp_path / "victim").exists()


def test_a_file_that_would_fill_the_memory_is_refused(haloctl: Command, data: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "bomb.gz", "wb") as stream:
        for _ in range(64):
            stream.write(b"a" * (1 << 20))
    code, _, err = haloctl("db", "import", "bomb.gz")
    assert code == 2
    assert "bomb.gz:1: is longer than" in err
    os.mkfifo(tmp_path / "pipe.json")
    for command in (
        ("db", "import", "pipe.json"),
        ("import", "vllm", "pipe.json", "--variant", "a-FP16", "--target", "cpu"),
    ):
        assert haloctl(*command)[::2] == (2, "haloctl: pipe.json: is no regular file\n")
