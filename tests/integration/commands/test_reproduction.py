"""Scripts that do an attempt again, run by a real shell with tools of the test's own."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from db.connection.engine import open_database
from db.reads import reports
from db.reads.reports import AttemptRow, TaskRow
from db.store import Store
from jobs.exporters import stage_of
from jobs.task import Artifact, Command, Device, Place, Process
from jobs.toolchains import Lock, Toolchain
from orchestrator.reruns.reproduction import manifest, script
from tests.stored_jobs import submit, succeed
from workers.agent.ports import free_port
from workers.environment import stage_environment
from workers.toolchains import uv

ROOT = Path(__file__).parents[3]

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
    tool.with_name("python3").symlink_to(sys.executable)
    tool.write_text(f"#!{sys.executable} -I\n{TELLS}")
    tool.chmod(0o755)
    (tmp_path / "model").write_text("module {}")
    return replace(
        stored[0],
        commands=(Command(("tells", NASTY, ""), {"MORE": NASTY}), Command(("tells", "second"))),
        processes=tuple(Process((str(tool),), 0, 1.0, 1) for _ in range(2)),
        environment={"LC_ALL": "C", "NASTY": NASTY},
        versions={},
        inputs={"export": (Artifact("model.mlir", "mlir", sha256("module {}"), 9),)},
        artifacts=(),
        node="a\nrm -rf $HOME",
    )


def text_of(attempt: AttemptRow, task: TaskRow, path: str = "", lock: Lock | None = None) -> str:
    return script(manifest(attempt, task, lock, lambda _: {"path": path}, str(ROOT)))


def run(
    attempt: AttemptRow, task: TaskRow, folder: Path, *arguments: str, lock: Lock | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["/bin/sh", "-s", *(arguments or ("again",))],
        input=text_of(attempt, task, str(folder / "model"), lock),
        cwd=folder,
        env={**os.environ, "CALLERS_OWN": "1", **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
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


class Server(BaseHTTPRequestHandler):
    """Has the two parts of a file, for those who know the word that belongs to it."""

    def do_GET(self) -> None:
        body = {"/1?word=open": b"module ", "/2?word=open": b"{}"}.get(self.path)
        self.send_response(200 if body else 403)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("word", "code"), [("open", 0), ("closed", 22)])
def test_inputs_that_are_elsewhere_come_by_their_links(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path, word: str, code: int
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever).start()
        urls = [f"http://127.0.0.1:{server.server_port}/{part}?word={word}" for part in (1, 2)]
        text = script(manifest(attempt, stored[1], None, lambda _: {"path": "", "urls": urls}, str(ROOT)))
        done = subprocess.run(
            ["/bin/sh", "-s", "again"],
            input=text,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        server.shutdown()
    assert done.returncode == code, done.stderr
    if code == 0:
        assert (tmp_path / "again" / "inputs" / "export" / "model.mlir").read_text() == "module {}"


def test_inputs_that_are_in_no_folder_come_through_haloctl(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path
) -> None:
    """Under the caller's own environment, which has the credentials."""
    haloctl = tmp_path / "path" / "haloctl"
    haloctl.parent.mkdir()
    haloctl.write_text('#!/bin/sh\necho "$CALLERS_OWN $*" >asked; printf "module {}" >"$5"\n')
    haloctl.chmod(0o755)
    (tmp_path / "model").unlink(missing_ok=True)
    done = run(attempt, stored[1], tmp_path, PATH=f"{haloctl.parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    sha = attempt.inputs["export"][0].sha256
    asked = (tmp_path / "again" / "asked").read_text()
    assert asked == f"1 artifacts get {sha} --output inputs/export/model.mlir\n"


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
    text = text_of(replace(attempt, versions={"torch": "2.13.1"}), stored[1])
    header = text[: text.index("set -eu")].splitlines()
    assert all(line.startswith("#") for line in header)
    assert any(line.endswith("pip install torch==2.13.1") for line in header)


def test_where_no_tool_was_found_their_folder_may_be_named(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path
) -> None:
    done = run(replace(attempt, processes=()), stored[1], tmp_path, TOOLS="the tools")
    assert (done.returncode, done.stderr) == (0, "")
    assert "again/outputs" in done.stdout


@pytest.fixture
def wheels(tmp_path: Path) -> Iterator[Path]:
    """Two releases of a package with a module that writes which one it is."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for release in ("1.0", "2.0"):
        about = f"tells-{release}.dist-info"
        files = {
            "tells.py": f"open('outputs/release', 'w').write('{release}')",
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: tells\nVersion: {release}\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
        with zipfile.ZipFile(folder / f"tells-{release}-py3-none-any.whl", "w") as wheel:
            for name, text in {**files, f"{about}/RECORD": record}.items():
                wheel.writestr(name, text)
    yield folder


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_toolchain_that_is_not_here_any_more_is_built_as_it_was(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path, wheels: Path, tool: str
) -> None:
    """With uv under a lock's very lines, with pip by the versions alone."""
    gone = replace(
        attempt,
        commands=(Command(("python", "-m", "tells")),),
        processes=(Process(("/is/gone/bin/python3",), 0, 1.0, 1),),
        versions={"tells": "1.0"},
    )
    digest = hashlib.sha256((wheels / "tells-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    line = f"tells==1.0 --hash=sha256:{digest}"
    python = ".".join(map(str, sys.version_info[:2]))
    lock = Lock("iree-1.0", (line,), {"tells": "1.0"}, python, True, "") if tool == "uv" else None
    path = tmp_path / "path"
    path.mkdir()
    for name, program in (("python3", sys.executable), *([("uv", uv.path())] if tool == "uv" else [])):
        (path / name).symlink_to(program)
    done = run(
        gone,
        stored[1],
        tmp_path,
        lock=lock,
        PATH=f"{path}:/usr/bin:/bin",
        TOOLS="",
        PIP_NO_INDEX="1",
        UV_NO_INDEX="1",
        UV_OFFLINE="1",
        PIP_FIND_LINKS=str(wheels),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "again" / "outputs" / "release").read_text() == "1.0"
    assert "building the toolchain" in done.stderr


def test_each_node_of_a_gang_is_told_which_one_it_is(
    attempt: AttemptRow, stored: tuple[AttemptRow, TaskRow], tmp_path: Path
) -> None:
    settings = {
        "engine": "torch",
        "nodes": 2,
        "precision": "f32",
        "attention": "sdpa",
        "target": "cpu",
        "tp": 2,
        "batch": [1],
        "prompt_tokens": [8],
        "new_tokens": 2,
        "warmup": 0,
        "repetitions": 2,
        "model": {"text": "tiny-llama", "digest": "", "revision": None, "overrides": {}},
    }
    commands = stage_of("benchmark", settings).commands(settings, Toolchain("default", {}))
    gang = replace(
        attempt,
        inputs={},
        commands=tuple(commands),
        processes=(Process((sys.executable,), 0, 1.0, 1),),
        environment={
            **stage_environment((), 1),
            "PET_NNODES": "2",
            "PET_NODE_RANK": "0",
            "PET_MASTER_ADDR": "10.0.0.1",
        },
        places=(Place("a", (Device("cpu", 0),)), Place("b", (Device("cpu", 0),))),
    )
    task = replace(stored[1], stage="benchmark", settings=settings)
    untold = run(gang, task, tmp_path)
    assert untold.returncode == 2
    assert "a: sh reproduce.sh FOLDER 0 ADDRESS" in untold.stderr
    assert "b: sh reproduce.sh FOLDER 1 ADDRESS" in untold.stderr
    assert not (tmp_path / "again").exists()
    port = str(free_port("127.0.0.1"))
    with ThreadPoolExecutor() as threads:
        both = list(
            threads.map(lambda rank: run(gang, task, tmp_path, f"node{rank}", rank, "127.0.0.1", port), ("0", "1"))
        )
    assert [done.returncode for done in both] == [0, 0], both[0].stderr + both[1].stderr
    report = json.loads((tmp_path / "node0" / "outputs" / "benchmark_bs1_t8.json").read_text())
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
