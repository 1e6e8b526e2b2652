"""Cases that are run through haloctl's command line, each in a forked process below limits, and how each ended."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

from orchestrator.submission.model_check_process import CHECK_FAILED
from tests.acceptance.haloctl import LEFT_OUT, ROOT
from tests.fuzz import fork_server
from tests.fuzz.case_databases import CaseDatabase

CASE_TIMEOUT_S = 10.0
CASE_MEMORY_MIB = 2048
READY_S = 120.0
MAX_OUTPUT_BYTES = 1 << 20  #: of what a refusal or a plan prints, as much as is looked at

#: What the processes of commands and of checks of models import before they fork.
COMMAND_MODULES = ("tests.fuzz.preload_commands",)
CHECK_MODULES = ("tests.fuzz.preload_checks",)

TRACEBACK = "Traceback (most recent call last)"
DONE_OR_REFUSED = frozenset({0, 2})
REFUSED = frozenset({2})


@dataclass(frozen=True)
class Case:
    """One run of haloctl in a folder of its own."""

    name: str
    argv: tuple[str, ...]  #: of haloctl
    files: Mapping[str, str | bytes] = field(default_factory=dict)  #: by path in the folder
    prepare: Callable[[Path], None] | None = None  #: makes in the folder what is no plain file, such as links
    codes: frozenset[int] = DONE_OR_REFUSED  #: the exit codes that are right
    variables: Mapping[str, str] = field(default_factory=dict)
    check: Callable[["Result", Path], str] | None = None  #: returns what is wrong in the folder afterwards; or empty
    max_wall_s: float = CASE_TIMEOUT_S
    max_peak_mib: int = CASE_MEMORY_MIB
    database: str = ""  #: name of the database that it is run on; empty: that of the data folder


@dataclass(frozen=True)
class Result:
    """How a case ended."""

    code: int
    out: str
    err: str
    wall_s: float
    peak_bytes: int
    has_hung: bool


def fault(case: Case, result: Result) -> str:
    """Return what is wrong with a result; empty if nothing is."""
    if result.has_hung:
        return f"ran longer than {CASE_TIMEOUT_S:g} s"
    if TRACEBACK in result.err:
        return f"a traceback: {result.err.strip().splitlines()[-1][:300]}"
    if "MemoryError" in result.err or CHECK_FAILED in result.err or result.code < 0:
        return f"ended with {result.code}: {result.err[-300:]}"
    if result.code not in case.codes:
        expected = " or ".join(map(str, sorted(case.codes)))
        return f"exit code {result.code} instead of {expected}: {result.err[-300:] or result.out[-300:]}"
    if result.code == 2 and not result.err.strip():
        return "refused without a message"
    if result.wall_s > case.max_wall_s:
        return f"took {result.wall_s:.1f} s, more than {case.max_wall_s:g} s"
    if result.peak_bytes >> 20 > case.max_peak_mib:
        return f"took {result.peak_bytes >> 20} MiB, more than {case.max_peak_mib}"
    return ""


@dataclass
class Figures:
    """What a corpus's cases came to."""

    corpus: str
    codes: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def add(self, case: Case, result: Result, fault: str) -> None:
        """Count one case."""
        self.codes[result.code] += 1
        self.slowest = max(self.slowest, (result.wall_s, case.name))
        self.largest = max(self.largest, (result.peak_bytes, case.name))
        if fault:
            self.faults.append(f"{case.name}: {fault}")

    def __str__(self) -> str:
        codes = ", ".join(f"{count} x {code}" for code, count in sorted(self.codes.items()))
        return (
            f"{self.corpus}: {self.codes.total()} cases, {len(self.faults)} faults; exit codes {codes}; slowest "
            f"{self.slowest[0]:.2f} s ({self.slowest[1]}), largest {self.largest[0] >> 20} MiB ({self.largest[1]})"
        )


class Harness:
    """Runs cases one after the other, with one data folder for all of them."""

    def __init__(
        self, folder: Path, commands: Path, python: Path, databases: Mapping[str, CaseDatabase], **variables: str
    ) -> None:
        """`commands` is the socket of the process that runs haloctl; `python` starts the programs that it starts."""
        self._folder, self._commands, self._python, self._databases = folder, commands, python, databases
        self._variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HALOCTL_DATA": str(folder / "data"),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "hub"),
            **variables,
        }
        self._count = 0

    def run(self, case: Case) -> tuple[Result, str]:
        """Run one case; return how it ended, and what is wrong with that."""
        self._count += 1
        folder = self._folder / f"case{self._count}"
        folder.mkdir(parents=True)
        try:
            for name, content in case.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
            if case.prepare:
                case.prepare(folder)
            result = self._run(case, folder)
            wrong = self._databases[case.database].check(result.code) if case.database else ""
            return result, fault(case, result) or wrong or (case.check(result, folder) if case.check else "")
        finally:
            rmtree(folder, ignore_errors=True)

    def run_all(self, corpus: str, cases: Iterable[Case]) -> Figures:
        """Run cases; return their figures."""
        figures = Figures(corpus)
        for case in cases:
            figures.add(case, *self.run(case))
        return figures

    def _run(self, case: Case, folder: Path) -> Result:
        request = {
            "argv": ["-m", "orchestrator.cli", *case.argv],
            "cwd": str(folder),
            "env": {**self._variables, **self._database_variables(case), **case.variables},
            "python": str(self._python),
        }
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            answer = _ask(self._commands, request, [out.fileno(), err.fileno()])
            texts = (_beginning_and_end(out), _beginning_and_end(err))
        return Result(answer["code"], *texts, answer["wall_s"], answer["peak_bytes"], answer["has_hung"])

    def _database_variables(self, case: Case) -> dict[str, str]:
        return {"HALOCTL_DATABASE_URL": self._databases[case.database].url} if case.database else {}


def _ask(path: Path, request: Mapping[str, Any], streams: list[int]) -> dict[str, Any]:
    """Have a fork server run a command, with an endless `yes` on its stdin: nothing may ask for it."""
    reading, writing = os.pipe()
    os.write(writing, b"y\n" * 1000)
    os.close(writing)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(path))
        socket.send_fds(server, [b"x"], [reading, *streams])
        os.close(reading)
        server.sendall(json.dumps(request).encode())
        server.shutdown(socket.SHUT_WR)
        answer: dict[str, Any] = json.loads(b"".join(iter(lambda: server.recv(1 << 16), b"")))
    return answer


def _beginning_and_end(stream: Any) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    text: bytes = stream.read(MAX_OUTPUT_BYTES)
    if size > len(text):
        stream.seek(max(len(text), size - MAX_OUTPUT_BYTES))
        text += stream.read()
    return text.decode(errors="replace")


@contextmanager
def harness(folder: Path, databases: Mapping[str, CaseDatabase], **variables: str) -> Iterator[Harness]:
    """Start the processes that run commands and checks of models, and end them with the context."""
    with ExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-", dir="/tmp")))
        servers = {"checks": CHECK_MODULES, "commands": COMMAND_MODULES}
        started = {name: _start_server(sockets / name, modules) for name, modules in servers.items()}
        for process in started.values():
            stack.enter_context(process)
            stack.callback(process.kill)
        for name, process in started.items():
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            assert line == fork_server.READY, f"{name} did not start: {line}"
        python = sockets / "python"
        python.write_text(fork_server.CLIENT.format(python=sys.executable, path=str(sockets / "checks")))
        python.chmod(0o700)
        yield Harness(folder, sockets / "commands", python, databases, **variables)


def _start_server(path: Path, modules: tuple[str, ...]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.fuzz.fork_server",
            str(path),
            str(CASE_MEMORY_MIB),
            str(CASE_TIMEOUT_S),
            *modules,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
