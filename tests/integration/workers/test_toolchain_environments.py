"""Toolchains resolved and built by the real uv, from packages made here."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import HaloError, IndexUnreachable, StorageUnusable, ToolchainUnusable
from jobs.state import FailureKind
from jobs.task import Attempt, Command, TaskResult
from jobs.toolchain_table import find_toolchain
from jobs.toolchains import Lock, Toolchain, ToolchainSpec
from tests import toolchain_wheels
from tests.command_lines import command_text
from tests.integration.attempts import FINITE_INVOCATION, living, make_attempt, python, until
from tests.integration.disks import small_disk
from workers.artifacts import ArtifactStore
from workers.attempts.run_task import run
from workers.environment import stage_environment
from workers.processes.cancellation import Cancellation
from workers.toolchain_probe import probe_toolchain
from workers.toolchains import resolving, uv
from workers.toolchains.environments import Environments
from workers.toolchains.resolving import PYTHON, installed_packages, resolve

__all__ = ["small_disk"]

BROUGHT = "Metadata-Version: 2.1\nName: brought-along\nVersion: 1.0\n"
TEAPOT = ToolchainSpec(("teapot==1.0",), is_over=False)
SAY = "def main():\n    print('short and stout')\n"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    toolchain_wheels.iree(folder, "9.1.0")
    toolchain_wheels.wheel(folder, "teapot", "1.0", {"teapot.py": SAY}, scripts={"pour": "teapot:main"})
    toolchain_wheels.wheel(folder, "teapot", "2.0", needs=["torch>=1"])
    toolchain_wheels.wheel(folder, "teapot", "3.0", needs=["PyYAML<1"])
    toolchain_wheels.wheel(folder, "teapot", "4.0", needs=["PyYAML"])
    for version in ("0.9", dict(installed_packages())["pyyaml"]):
        toolchain_wheels.wheel(folder, "pyyaml", version)
    return folder


@pytest.fixture(autouse=True)
def _packages(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages made here are all there are."""
    for name in [*uv.FROM_PIP, *(name for name in os.environ if name.startswith("UV_"))]:
        monkeypatch.delenv(name, raising=False)
    for name, value in toolchain_wheels.variables(wheels).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    return probe_toolchain(tmp_path_factory.mktemp("probed"))


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    return Environments(tmp_path / "data")


@pytest.fixture(scope="session")
def built(wheels: Path, base: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder with a release of IREE and the teapot, for reading only."""
    data = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in toolchain_wheels.variables(wheels).items():
            patch.setenv(name, value)
        for name, row in {"iree-9.1": find_toolchain("iree-9.1"), "teapot-1": TEAPOT}.items():
            Environments(data).build(resolve(name, row, base, data / "cache"))
        yield data


def lock_of(environments: Environments, base: Toolchain, row: ToolchainSpec = TEAPOT) -> Lock:
    return resolve("teapot-1", row, base, environments.cache)


def by_hand(*lines: str) -> Lock:
    """A lock that nobody resolved."""
    return Lock("teapot-1", lines, {}, PYTHON, is_over=False, source="")


def digest(data: Path, name: str) -> str:
    return next(built.toolchain.lock for built in Environments(data).all() if built.toolchain.name == name)


def answer(data: Path, name: str, code: str, **variables: str) -> Any:
    """What a program under a toolchain prints as JSON, without the checkout on its path."""
    inherited = {key: value for key, value in stage_environment().items() if key != "PYTHONPATH"}
    interpreter = Path(
        next(built.folder for built in Environments(data).all() if built.toolchain.name == name) / "bin/python"
    )
    done = subprocess.run(
        [interpreter, "-c", code], env=inherited | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_lies_over_haloctl_has_only_what_differs(environments: Environments, base: Toolchain) -> None:
    lock = resolve("iree-9.1", find_toolchain("iree-9.1"), base, environments.cache)
    assert [line.partition(" --hash=sha256:")[0] for line in lock.lines] == [
        "iree-base-compiler==9.1.0",
        "iree-base-runtime==9.1.0",
    ]
    needing = resolve("teapot-4", ToolchainSpec(("teapot==4.0",)), base, environments.cache)
    assert [line.partition(" ")[0] for line in needing.lines] == ["teapot==4.0"]
    released = {"iree-base-compiler": "9.1.0", "iree-base-runtime": "9.1.0"}
    assert lock.versions == {**base.versions, **released}
    assert lock == resolve("iree-9.1", find_toolchain("iree-9.1"), base, environments.cache)


def test_what_no_index_has_is_taken_from_below(environments: Environments, base: Toolchain) -> None:
    if "+" not in dict(installed_packages())["torch"]:
        pytest.skip("the torch that is installed here is one that indexes have")
    lock = resolve("teapot-2", ToolchainSpec(("teapot==2.0",)), base, environments.cache)
    assert [line.partition(" ")[0] for line in lock.lines] == ["teapot==2.0"]
    assert lock.versions["torch"] == base.versions["torch"]


def test_what_does_not_go_with_what_is_below_is_refused_in_uvs_words(
    environments: Environments, base: Toolchain
) -> None:
    with pytest.raises(ToolchainUnusable, match=r"toolchain teapot-3 can't be resolved: (?s:.*)pyyaml<1") as caught:
        resolve("teapot-3", ToolchainSpec(("teapot==3.0",)), base, environments.cache)
    assert f"pyyaml=={dict(installed_packages())['pyyaml']}" in str(caught.value)
    alone = resolve("teapot-3", ToolchainSpec(("teapot==3.0",), is_over=False), base, environments.cache)
    assert [line.partition(" ")[0] for line in alone.lines] == ["pyyaml==0.9", "teapot==3.0"]
    without = resolve(
        "teapot-3", ToolchainSpec(("teapot==3.0",), is_over=False, without=("PyYAML",)), base, environments.cache
    )
    assert [line.partition(" ")[0] for line in without.lines] == ["teapot==3.0"]
    assert without.source != alone.source


def test_no_source_is_built_to_resolve_a_toolchain_unless_its_row_says_so(
    environments: Environments, base: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / "built"
    toolchain_wheels.source(tmp_path / "sources", "kettle", "1.0", f"open({str(built)!r}, 'w')")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "sources"))
    kettle = ToolchainSpec(("kettle==1.0",), is_over=False)
    with pytest.raises(ToolchainUnusable, match="building from source is disabled"):
        resolve("kettle-1", kettle, base, environments.cache)
    assert not built.exists()
    lock = resolve("kettle-1", replace(kettle, may_build=True), base, environments.cache)
    assert [line.partition(" ")[0] for line in lock.lines] == ["kettle==1.0"]
    assert built.exists()


def test_programs_see_what_lies_over_first_and_the_rest_below(built: Path, base: Toolchain) -> None:
    code = """
import json, sys, jobs.models, workers.llm.command_line, iree.runtime
from importlib.metadata import version
from importlib.util import find_spec
print(json.dumps([version("iree-base-compiler"), version("torch"), find_spec("torch").origin, sys.prefix]))
"""
    report = answer(built, "iree-9.1", code)
    assert report[:2] == ["9.1.0", base.versions["torch"]]
    assert not report[2].startswith(report[3])


def test_an_environment_of_its_own_sees_stage_programs_and_nothing_else(built: Path) -> None:
    code = """
import json, sys, jobs.models, workers.llm.command_line
from importlib.util import find_spec
print(json.dumps([bool(find_spec(name)) for name in ("teapot", "pydantic", "torch", "yaml", "db")]))
"""
    assert answer(built, "teapot-1", code) == [True, False, False, False, False]


@pytest.mark.parametrize("program", ["export", "invoke", "numerics", "torch_benchmark"])
def test_a_stage_program_misses_packages_alone(built: Path, program: str) -> None:
    """What it imports of haloctl's is there."""
    code = f"""
import json
try:
    import workers.llm.programs.{program}
except ModuleNotFoundError as error:
    print(json.dumps(error.name))
"""
    assert answer(built, "teapot-1", code) in ("torch", "iree", "transformers", "safetensors", "numpy")


def carried_out(data: Path, attempt: Attempt) -> TaskResult:
    return run(attempt, data, ArtifactStore(data / "artifacts"), Toolchain("default", {}), Cancellation())


def test_an_attempt_runs_under_the_toolchain_that_it_asks_for(built: Path) -> None:
    attempt = make_attempt(Command(("pour",)), python(FINITE_INVOCATION))
    result = carried_out(built, replace(attempt, toolchain=digest(built, "teapot-1")))
    assert result.failure is None
    folder = Path(result.processes[0].argv[0]).parent
    assert result.processes[1].argv[0] == str(folder / "python")
    assert result.environment["PATH"].split(":")[0] == str(folder)
    assert result.versions == {"teapot": "1.0"}
    assert "short and stout" in (built / "logs" / f"{attempt.id}.log").read_text()


def test_a_tool_that_no_package_brings_is_missed_by_its_toolchains_name(built: Path) -> None:
    result = carried_out(
        built, replace(make_attempt(Command(("iree-compile", "--help"))), toolchain=digest(built, "teapot-1"))
    )
    assert result.failure
    assert result.failure.kind is FailureKind.TOOLCHAIN
    assert "toolchain teapot-1 has no iree-compile" in result.failure.message


def test_a_tool_of_what_is_below_is_found_there(built: Path) -> None:
    """The release made here brings the compiler's tool and not the runtime's."""
    attempt = make_attempt(Command(("iree-benchmark-module", "--help")), python(FINITE_INVOCATION))
    result = carried_out(built, replace(attempt, toolchain=digest(built, "iree-9.1")))
    assert result.failure is None
    assert result.processes[0].argv[0] == str(Path(sys.executable).with_name("iree-benchmark-module"))


def test_an_attempt_under_what_is_not_built_here_goes_elsewhere(tmp_path: Path) -> None:
    result = carried_out(tmp_path, replace(make_attempt(python("")), toolchain="0" * 64))
    assert result.failure
    assert result.failure.kind is FailureKind.NODE_UNFIT


def test_compiler_flags_are_those_of_the_toolchains_compiler(built: Path, base: Toolchain) -> None:
    toolchains = {environment.toolchain.name: environment.toolchain for environment in Environments(built).all()}
    assert toolchains["iree-9.1"].compiler_flags == base.compiler_flags
    assert toolchains["teapot-1"].compiler_flags == frozenset()
    assert toolchains["iree-9.1"].host_cpu == base.host_cpu


def test_who_builds_at_the_same_time_builds_once(environments: Environments, base: Toolchain) -> None:
    lock = lock_of(environments, base)
    with ThreadPoolExecutor(3) as threads:
        toolchains = list(
            threads.map(
                lambda builder: builder.build(lock),
                [Environments(environments.folder.parent) for _ in range(3)],
            )
        )
    assert toolchains[0] == toolchains[1] == toolchains[2]
    (environment,) = environments.all()
    assert environments.build(lock) == toolchains[0]
    assert environments.all() == [environment]


def test_what_others_have_below_it_is_another_environment(built: Path, base: Toolchain) -> None:
    """A node's torch may not be the head's."""
    lock = resolve("iree-9.1", find_toolchain("iree-9.1"), base, built / "cache")
    other = replace(lock, versions={**lock.versions, "torch": "1.0"})
    with pytest.raises(ToolchainUnusable, match=rf"torch is {base.versions['torch']}, not 1\.0".replace("+", r"\+")):
        Environments(built).build(other)
    assert Environments(built).toolchain(other.digest) is None


def test_a_lock_for_another_python_is_refused(environments: Environments) -> None:
    with pytest.raises(ToolchainUnusable, match=r"it is for Python 3\.99, and haloctl runs under"):
        environments.build(replace(by_hand("teapot==1.0"), python="3.99"))


def test_a_wheel_that_is_not_the_one_that_was_locked_is_refused(environments: Environments) -> None:
    with pytest.raises(ToolchainUnusable, match=r"can't be built: (?s:.*)Hash mismatch"):
        environments.build(by_hand(f"teapot==1.0 --hash=sha256:{'0' * 64}"))
    assert not [path for path in environments.folder.iterdir() if path.suffix != ".lock"]


def test_a_full_disk_is_a_matter_of_the_disk(small_disk: Path) -> None:
    environments = Environments(small_disk / "data")
    with pytest.raises(StorageUnusable, match="toolchain teapot-1: "):
        environments.build(by_hand(*(f"teapot==1.0 --hash=sha256:{number:064}" for number in range(20_000))))
    assert environments.all() == []


class _Index(BaseHTTPRequestHandler):
    """An index that lists the teapot, and is slow to hand it out or unable to."""

    def do_GET(self) -> None:
        if self.path.startswith("/simple/teapot"):
            names = [f"teapot-{version}-py3-none-any.whl" for version in ("1.0", "2.0")]
            self._answer(200, "".join(f'<a href="/{name}">{name}</a>' for name in names).encode())
        elif self.path.startswith("/teapot-2.0"):
            self._answer(404, b"")
        elif self.path.endswith((".whl", ".metadata")):
            self.server.asked.set()  # type: ignore[attr-defined]
            self.server.let.wait()  # type: ignore[attr-defined]
            self._answer(503, b"")
        else:
            self._answer(404, b"")

    do_HEAD = do_GET

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def index(*, is_slow: bool) -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Index) as server:
        server.daemon_threads = True
        server.asked, server.let = threading.Event(), threading.Event()  # type: ignore[attr-defined]
        if not is_slow:
            server.let.set()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.let.set()  # type: ignore[attr-defined]
            server.shutdown()
            thread.join()


def use_index(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    for name in ("UV_OFFLINE", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://somebody:password@127.0.0.1:{port}/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_an_index_that_is_down_is_asked_again_and_its_password_is_not_told(
    environments: Environments, base: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    with index(is_slow=False) as server:
        use_index(monkeypatch, server.server_port)
        with pytest.raises(IndexUnreachable, match="503") as failing:
            environments.build(by_hand("teapot==1.0"))
        with pytest.raises(ToolchainUnusable, match="404"):
            environments.build(by_hand("teapot==2.0"))
        with pytest.raises(ToolchainUnusable, match="not found"):
            resolve("kettle-1", ToolchainSpec(("kettle==1.0",), is_over=False), base, environments.cache)
    with pytest.raises(IndexUnreachable, match="Connection refused") as gone:
        resolve("teapot-1", TEAPOT, base, environments.cache)
    for error in (failing.value, gone.value):
        assert "somebody" not in str(error)
        assert "password" not in str(error)


BUILD = """
import sys
from pathlib import Path
from jobs.toolchains import Lock
from workers.toolchains.environments import Environments
from workers.toolchains.resolving import PYTHON
Environments(Path(sys.argv[1])).build(Lock("teapot-1", ("teapot==1.0",), {}, PYTHON, False, ""))
"""


def test_a_killed_build_leaves_nothing_that_counts_and_no_process(
    environments: Environments, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = by_hand("teapot==1.0")
    data = environments.folder.parent
    with index(is_slow=True) as server, monkeypatch.context() as patch:
        use_index(patch, server.server_port)
        builder = subprocess.Popen([sys.executable, "-c", BUILD, str(data)], cwd=Path(__file__).parents[3])
        assert server.asked.wait(60)
        assert living("--no-deps")
        builder.send_signal(signal.SIGKILL)
        builder.wait()
        until(
            lambda: not [process for process in living("--no-deps") if str(data) in command_text(process)],
            "uv has ended",
        )
    assert environments.toolchain(lock.digest) is None
    assert environments.build(lock).tools
    assert environments.toolchain(lock.digest)


def test_a_build_is_called_off(environments: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
    cancellation = Cancellation()
    with index(is_slow=True) as server, ThreadPoolExecutor(1) as threads:
        use_index(monkeypatch, server.server_port)
        building = threads.submit(environments.build, by_hand("teapot==1.0"), cancellation)
        assert server.asked.wait(60)
        cancellation.cancel()
        with pytest.raises(HaloError, match="was ended before it was done"):
            building.result(60)
    assert environments.all() == []


def test_what_nobody_used_for_long_is_removed_and_what_runs_stays(environments: Environments, base: Toolchain) -> None:
    lock = lock_of(environments, base)
    environments.build(lock)
    assert environments.gc() == []
    with environments.use(lock.digest) as toolchain:
        assert toolchain
        assert environments.gc(unused_for_s=0) == []
    (removed,) = environments.gc(unused_for_s=0)
    assert removed.toolchain == toolchain
    assert removed.size_bytes > 0
    assert environments.all() == []
    with environments.use(lock.digest) as gone:
        assert gone is None
    assert environments.build(lock) == toolchain


def test_a_use_counts_as_such(environments: Environments, base: Toolchain) -> None:
    lock = lock_of(environments, base)
    environments.build(lock)
    (lock_file,) = environments.folder.glob("*.lock")
    os.utime(lock_file, (0, 0))
    (before,) = environments.all()
    with environments.use(lock.digest):
        pass
    (after,) = environments.all()
    assert (before.used_at.year, after.used_at.year > 1970) == (1970, True)
    assert environments.gc() == []


def test_pips_settings_are_uvs_where_uv_has_none() -> None:
    pip = {"PIP_FIND_LINKS": "/a /b", "PIP_INDEX_URL": "https://i/simple", "PIP_CERT": "/c.pem", "HALOCTL_X": "1"}
    told = uv.environment(Path("/cache"), pip)
    assert told["UV_FIND_LINKS"] == "/a,/b"
    assert (told["UV_DEFAULT_INDEX"], told["SSL_CERT_FILE"]) == ("https://i/simple", "/c.pem")
    assert (told["UV_CACHE_DIR"], "HALOCTL_X" in told) == ("/cache", False)
    variables = uv.environment(Path("/cache"), {**pip, "UV_INDEX_URL": "https://j/simple", "UV_CACHE_DIR": "/mine"})
    assert (variables["UV_INDEX_URL"], variables["UV_CACHE_DIR"], "UV_DEFAULT_INDEX" in variables) == (
        "https://j/simple",
        "/mine",
        False,
    )


def test_what_a_package_brings_for_itself_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray puts a folder inside of it on the path, whose packages no other program sees."""
    for folder in (tmp_path / "ray" / "thirdparty", tmp_path.with_name("installed-in-place")):
        info = folder / f"{folder.name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(BROUGHT.replace("brought-along", folder.name))
        monkeypatch.syspath_prepend(str(folder))
    assert {"thirdparty", "installed-in-place"} <= dict(installed_packages()).keys()
    monkeypatch.setattr(resolving, "site_folders", lambda: iter([str(tmp_path)]))
    assert "thirdparty" not in dict(installed_packages())
    assert "installed-in-place" in dict(installed_packages())
