"""Stages are set apart: they write to their own folder and to caches, and read no environment but their own."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.errors import BadSetting
from jobs.task import Attempt, Command, TaskResult
from jobs.toolchains import Toolchain
from tests.integration.attempts import make_attempt, python
from tests.other_users import NOBODY, needs_root
from workers.agent.agent import Agent
from workers.agent.protocol import AgentConfig
from workers.artifacts import ArtifactStore
from workers.attempts.folders import log_path
from workers.attempts.isolation import isolation_of
from workers.attempts.run_task import run
from workers.processes import landlock
from workers.processes.cancellation import Cancellation
from workers.processes.stage_user import stage_user

needs_landlock = pytest.mark.skipif(not landlock.IS_USABLE, reason="this kernel has no Landlock of ABI 2 or newer")

#: Tries what a stage must not be able to do, and what it must; prints the outcomes as JSON. argv: agent's pid, folders.
TRIES = """
import json, os, pathlib, socket, sys, tempfile
pid, data, home, artifact = sys.argv[1:]
def outcome(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__
def append(path):
    with open(path, "ab") as file:
        file.write(b"x")
def change_input():
    os.chmod("inputs/export/model.mlir", 0o644)
    append("inputs/export/model.mlir")
def move_between_folders():
    os.mkdir("a"), os.mkdir("b")
    append("a/x")
    os.rename("a/x", "b/x")
    os.link("b/x", "a/y")
print(json.dumps({
    "environ": outcome(lambda: open(f"/proc/{pid}/environ", "rb").read()),
    "memory": outcome(lambda: open(f"/proc/{pid}/mem", "rb").close()),
    "signal": outcome(lambda: os.kill(int(pid), 0)),
    "data": outcome(lambda: append(f"{data}/haloctl.db")),
    "data folder": outcome(lambda: os.mkdir(f"{data}/mine")),
    "home": outcome(lambda: append(f"{home}/.bashrc")),
    "etc": outcome(lambda: append("/etc/haloctl-test")),
    "store": outcome(lambda: append(artifact)),
    "input": outcome(change_input),
    "truncate": outcome(lambda: os.truncate(f"{data}/haloctl.db", 0)),
    "remove": outcome(lambda: os.unlink(f"{data}/haloctl.db")),
    "output": outcome(lambda: append("outputs/x.json")),
    "own folder": outcome(lambda: append("x")),
    "temporary": outcome(lambda: tempfile.TemporaryFile().close()),
    "cache": outcome(lambda: append(f"{home}/.cache/x")),
    "null": outcome(lambda: append("/dev/null")),
    "shared memory": outcome(lambda: os.unlink(tempfile.mkstemp(dir="/dev/shm")[1])),
    "between folders": outcome(move_between_folders),
    "token": outcome(lambda: open(f"{data}/ray-token").read()),
    "link to token": outcome(lambda: (os.symlink(f"{data}/ray-token", "token"), open("token").read())),
    "ssh": outcome(lambda: open(f"{home}/.ssh/id").read()),
    "home file": outcome(lambda: open(f"{home}/.bashrc").read()),
    "data file": outcome(lambda: open(f"{data}/haloctl.db").read()),
    "lists": outcome(lambda: (os.listdir("/"), os.listdir(home), os.listdir(data))),
    "own environ": outcome(lambda: open("/proc/self/environ", "rb").read()),
}))
print("no_new_privs", [line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")])
"""

REFUSED = (
    "environ",
    "memory",
    "data",
    "data folder",
    "home",
    "etc",
    "store",
    "input",
    "truncate",
    "remove",
    "token",
    "link to token",
    "ssh",
)
POSSIBLE = (
    "output",
    "own folder",
    "temporary",
    "cache",
    "null",
    "shared memory",
    "between folders",
    "own environ",
    "home file",
    "data file",
    "lists",
)


def carried_out(data: Path, attempt: Attempt) -> TaskResult:
    toolchain = Toolchain("default", {})
    return run(attempt, data, ArtifactStore(data / "artifacts"), toolchain, Cancellation())


def log_of(data: Path, attempt: Attempt) -> list[str]:
    return log_path(data, attempt.id).read_text().splitlines()


@pytest.fixture(autouse=True)
def nothing_more_is_writable(writable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HALOCTL_STAGE_WRITABLE")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a database."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "haloctl.db").write_text("rows")
    return tmp_path / "data"


@needs_landlock
def test_a_stage_writes_to_its_own_folder_and_reads_no_environment_but_its_own(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    for secret in (tmp_path / "home" / ".ssh" / "id", data / "ray-token", tmp_path / "home" / ".bashrc"):
        secret.write_text("x")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "model.mlir").write_text("module {}")
    store = ArtifactStore(data / "artifacts")
    mlir = store.put(tmp_path / "model.mlir", "mlir", may_link=False)
    arguments = (str(os.getpid()), str(data), str(tmp_path / "home"), store.address(mlir.sha256))
    attempt = make_attempt(python(TRIES, *arguments), inputs={"export": (mlir,)})
    carried_out(data, attempt)
    outcomes = json.loads(log_of(data, attempt)[-2])
    assert {name: outcomes[name] for name in REFUSED} == dict.fromkeys(REFUSED, "PermissionError")
    assert {name: outcomes[name] for name in POSSIBLE} == dict.fromkeys(POSSIBLE, "done")
    assert outcomes["signal"] == ("PermissionError" if landlock.ABI >= landlock.SCOPE_ABI else "done")
    assert log_of(data, attempt)[-1] == "no_new_privs ['1']"
    assert (data / "haloctl.db").read_text() == "rows"
    assert store.verify(mlir)


@needs_landlock
def test_a_site_adds_folders_that_stages_may_write_to(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALOCTL_STAGE_WRITABLE", f"/nowhere:{tmp_path / 'scratch'}")
    (tmp_path / "scratch").mkdir()
    attempt = make_attempt(python(f"open({str(tmp_path / 'scratch' / 'x')!r}, 'w').write('x')"))
    carried_out(data, attempt)
    assert (tmp_path / "scratch" / "x").read_text() == "x"


def test_links_are_no_outputs(tmp_path: Path, data: Path) -> None:
    (tmp_path / "secret.json").write_text('{"load_s": 1.0, "calls": []}')
    attempt = make_attempt(python(f"import os; os.symlink({str(tmp_path / 'secret.json')!r}, 'outputs/invoke.json')"))
    result = carried_out(data, attempt)
    assert result.failure
    assert [artifact.kind for artifact in result.artifacts] == ["log"]


def test_a_folder_of_outputs_that_is_a_link_is_refused(tmp_path: Path, data: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "invoke.json").write_text("{}")
    swap = f"import os; os.rmdir('outputs'); os.symlink({str(tmp_path / 'secrets')!r}, 'outputs')"
    result = carried_out(data, make_attempt(python(swap)))
    assert result.failure
    assert [artifact.kind for artifact in result.artifacts] == ["log"]
    assert (tmp_path / "secrets" / "invoke.json").exists()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A data folder that another user can reach; those of tests are private."""
    folder = Path(tempfile.mkdtemp(prefix="halo-", dir="/tmp"))
    folder.chmod(0o700)
    (folder / "data").mkdir(mode=0o700)
    folder.chmod(0o711)
    yield folder / "data"
    shutil.rmtree(folder)


@needs_root
def test_stages_run_as_another_user_where_a_site_has_one(reachable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALOCTL_STAGE_USER", "nobody")
    (reachable / "ray-token").write_text("hush")
    (reachable / "ray-token").chmod(0o600)
    tries = f"""
        id -u; id -G; echo "$USER $HOME"
        cat {reachable}/ray-token || echo no token
        cat /proc/{os.getpid()}/environ >/dev/null || echo no environment
        kill -0 {os.getpid()} || echo no signal
        touch {reachable}/mine || echo no file
        ls {reachable} || echo no list
        echo hello >"$TMPDIR/x" && cat "$TMPDIR/x"
        echo '{{"load_s": 0.5, "calls": [{{"entry_point": "prefill_bs1_t8", "finite": true}}]}}' >outputs/invoke.json
    """
    attempt = make_attempt(Command(("sh", "-c", tries)))
    result = carried_out(reachable, attempt)
    assert result.failure is None
    said = "\n".join(line for line in log_of(reachable, attempt) if ": " not in line)
    groups = " ".join(map(str, os.getgrouplist("nobody", NOBODY)))
    for text in (
        f"{NOBODY}\n{groups}\nnobody ",
        "no token",
        "no environment",
        "no signal",
        "no file",
        "no list",
        "hello",
    ):
        assert text in said
    assert "hush" not in said
    (report, _) = result.artifacts
    assert ArtifactStore(reachable / "artifacts").path(report.sha256).stat().st_uid == os.geteuid()
    assert result.environment["USER"] == "nobody"
    assert list((reachable / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "why"), [("no-such-user", "no user is called 'no-such-user'"), ("root", r"only root can|root is root")]
)
def test_a_user_that_stages_cannot_run_as_is_refused(name: str, why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        stage_user({"HALOCTL_STAGE_USER": name})
    assert stage_user({}) is None


def test_a_node_whose_stage_user_is_unknown_takes_no_task(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALOCTL_STAGE_USER", "no-such-user")
    agent = Agent(AgentConfig("local", data))
    try:
        assert "HALOCTL_STAGE_USER: no user is called" in (agent.accept_leader(1, {}).cordon_reason or "")
    finally:
        agent.stop(1)


def test_without_a_home_folder_there_is_still_a_folder_to_write_to(tmp_path: Path) -> None:
    isolation = isolation_of(tmp_path / "data", tmp_path, {}, (), None)
    assert isolation.writable[0] == str(tmp_path)
    assert "" not in isolation.writable
