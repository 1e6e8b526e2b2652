"""haloctl as its users run it: real processes, with a separate data folder."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from tests.command_lines import command_text
from workers.environment import held_back_variables

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "orchestrator.cli")
COMMAND_S = 400.0  #: no command of these tests takes longer
DEADLINE_S = 180.0  #: for what another process is to do
GONE_S = 60.0  #: for the end of processes whose leader was killed
POLL_S = 0.1
HELD_BACK = frozenset(held_back_variables())  #: haloctl says that its stages do not see them
LEFT_OUT = ("HALOCTL_", "RAY_", "COLUMNS", "LINES", "PYTEST_")  #: of this process's environment


def left_in(temporary: Path) -> set[Path]:
    """Return what lies in a temporary folder and in this user's parent of Ray's folders, which itself stays."""
    parent = temporary / f"haloctl-{os.geteuid()}"
    return {*temporary.iterdir(), *(parent.iterdir() if parent.is_dir() else ())} - {parent}


@dataclass(frozen=True)
class Done:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


class Running:
    """A command that runs; its output goes to files."""

    def __init__(self, process: "subprocess.Popen[bytes]", out: Path, err: Path) -> None:
        self.process, self._out, self._err = process, out, err

    @property
    def err(self) -> str:
        """Return the stderr so far; while the command runs, its last character may be incomplete."""
        return self._err.read_text(errors="replace")

    @property
    def out(self) -> str:
        """Return the stdout so far."""
        return self._out.read_text(errors="replace")

    def until_says(self, text: str) -> None:
        """Wait for a text on stderr."""
        until(lambda: text in self.err or self._has_ended(), f"{text!r}")
        assert text in self.err, f"it ended with {self.process.returncode} and never said {text!r}:\n{self.err}"

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(number)

    def end(self) -> Done:
        """Wait for its end."""
        code = self.process.wait(COMMAND_S)
        return Done(code, self.out, self.err)

    def _has_ended(self) -> bool:
        return self.process.poll() is not None


class Haloctl:
    """One user's haloctl: a folder for job files, in it the data folder."""

    command: tuple[str, ...] = COMMAND

    def __init__(self, folder: Path, temporary: Path, **variables: str) -> None:
        self.folder, self.data = folder, folder / "data"
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(LEFT_OUT) and name not in HELD_BACK
            },
            "HALOCTL_DATA": str(self.data),
            "TMPDIR": str(temporary),  # a short path: Ray puts sockets below it
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "HALOCTL_MAX_FOREIGN_CPU_PERCENT": "100",  # other tests run beside this one
            **variables,
        }
        self._count = 0
        self._started: list[subprocess.Popen[bytes]] = []

    def but_with(self, **variables: str) -> Self:
        """The same folder, under another environment."""
        return type(self)(self.folder, Path(self.environment["TMPDIR"]), **variables)

    def run(self, *arguments: str, **options: Any) -> Done:
        """Run a command to its end."""
        done = subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=COMMAND_S,
            check=False,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        return Done(done.returncode, done.stdout or "", done.stderr)

    def answer(self, *arguments: str) -> str:
        """Run a command that must succeed; returns its stdout."""
        done = self.run(*arguments)
        assert done.code == 0, f"{arguments} ended with {done.code}:\n{done.err}"
        return done.out

    def json(self, *arguments: str) -> Any:
        """A command's answer for programs."""
        return json.loads(self.answer(*arguments, "--json"))

    def start(self, *arguments: str) -> Running:
        """Start a command without a terminal."""
        self._count += 1
        out, err = (self.folder / f"{self._count}.{name}" for name in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*self.command, *arguments],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        self._started.append(process)
        return Running(process, out, err)

    def job(self, **keys: Any) -> str:
        """Write a job file; returns its path."""
        self._count += 1
        path = self.folder / f"job{self._count}.yaml"
        path.write_text(yaml.safe_dump(keys, sort_keys=False))
        return str(path)

    def tasks(self, job: str) -> dict[str, dict[str, Any]]:
        """A job's tasks by stage and subject: `compile tiny-llama-FP16-TP1 cpu`."""
        return {f"{task['stage']} {task['subject']}": task for task in self.json("show", job)["tasks"]}

    def states(self, job: str) -> dict[str, str]:
        """The states of a job's tasks."""
        return {name: task["state"] for name, task in self.tasks(job).items()}

    def only_job(self) -> dict[str, Any]:
        """The one job that there is."""
        (job,) = self.json("list")
        assert isinstance(job, dict)
        return job

    def processes(self) -> list[psutil.Process]:
        """Every living process that has to do with this folder: haloctl's own, Ray's, supervisors, tools."""
        return [process for process in psutil.process_iter() if _mentions(process, str(self.folder))]

    def until_gone(self) -> None:
        """Wait until two polls find no process: one poll can miss a process that starts as another ends."""
        until(
            lambda: not (self.processes() or self.processes()),
            lambda: f"no process is left, but {_describe(self.processes())}",
            GONE_S,
        )

    def kill_all(self) -> None:
        """Kill all that is left, whatever a test did."""
        while processes := self.processes() or self.processes():
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(processes, 1)
        for started in self._started:
            started.wait()


@contextmanager
def opened(folder: Path, temporary: Path, origin: Path | None = None, **variables: str) -> Iterator[Haloctl]:
    """Open a haloctl on a copy of `origin`'s data folder, or of its cache if it has nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    haloctl = Haloctl(folder, temporary, **variables)
    if origin:
        shutil.copytree(origin, haloctl.data)
    try:
        yield haloctl
    finally:
        haloctl.kill_all()


@contextmanager
def short_folder() -> Iterator[Path]:
    """A temporary folder whose path leaves room for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="halo-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def until(condition: Callable[[], Any], what: str | Callable[[], str], deadline_s: float = DEADLINE_S) -> None:
    """Wait for something to become true; fail when it does not."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(POLL_S)


def _mentions(process: psutil.Process, folder: str) -> bool:
    """Whether a process has a folder in its environment, arguments, working folder or output (a supervisor: output)."""
    if process.pid == os.getpid():
        return False
    proc = Path("/proc") / str(process.pid)
    with suppress(OSError):
        if folder.encode() in (proc / "cmdline").read_bytes():
            return True
        if folder.encode() in (proc / "environ").read_bytes():
            return True
        links = [proc / "cwd", *(proc / "fd" / str(number) for number in range(3))]
        return any(os.readlink(link).startswith(folder) for link in links if link.is_symlink())
    return False


def _describe(processes: list[psutil.Process]) -> str:
    return "; ".join(f"{process.pid} {command_text(process)[:120]}" for process in processes)
