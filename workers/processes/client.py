"""The agent's side of the fork server: run commands under a supervisor, wait for them, cancel them."""

import marshal
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from jobs.masking import mask_userinfo
from jobs.task import Command, Process
from workers.processes import proc
from workers.processes.attempt_processes import ATTEMPT_VARIABLE, FORK_SERVER_PROGRAM, attempt_of, kill_attempt
from workers.processes.lease import Lease
from workers.processes.supervisor import TERM_GRACE_S

FORK_SERVER_ARGV = (sys.executable, "-I", "-S", "-c", FORK_SERVER_PROGRAM, str(Path(__file__).parents[2]))


class EndReason(StrEnum):
    """Why a run of commands ended."""

    DONE = "done"
    FAILED = "failed"  #: the last command that ran has an exit code other than 0
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  #: the lease was over
    UNABLE = "unable"  #: the supervisor could not go on: `errno` says why
    LOST = "lost"  #: the supervisor was killed


@dataclass(frozen=True)
class CommandResult:
    """A command that ran, and where in the log its output lies."""

    process: Process
    log_start: int
    log_end: int


@dataclass(frozen=True)
class RunResult:
    """The result of a run of commands, of which no process is left."""

    reason: EndReason
    commands: tuple[CommandResult, ...]  #: those that were started
    errno: int = 0


class ForkServerClient:
    """Starts this process's fork server with the first run, and again after it was killed.

    With the fork server end all supervisors that it made. It ends with this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The fork server's process id; None before the first run."""
        return self._process.pid if self._process else None

    def supervisor_of(self, attempt_id: str) -> int | None:
        """Return the process that runs an attempt's commands; None while none of them runs."""
        for supervisor in proc.children(self.pid) if self.pid else ():
            if any(attempt_of(child) == attempt_id for child in proc.children(supervisor)):
                return supervisor
        return None

    def request_run(self, files: Sequence[int]) -> None:
        """Send the files of a run to the fork server, which gives them to a supervisor."""
        with self._lock:
            requests = self._requests or self._start()
            try:
                socket.send_fds(requests, [b"+"], files)
            except (BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._start(), [b"+"], files)

    def _start(self) -> socket.socket:
        if self._process and self._requests:
            self._requests.close()
            self._process.wait()
        self._requests, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_end:
            # an empty environment, without any attempt's id: `kill_attempt` after this process's death must not hit it
            self._process = subprocess.Popen(
                FORK_SERVER_ARGV, stdin=its_end.fileno(), stdout=subprocess.DEVNULL, cwd="/", env={}
            )
        return self._requests


fork_server = ForkServerClient()


class SupervisedRun:
    """Commands that run one after another under a supervisor.

    No process of theirs outlives the supervisor, this process or the `with` block.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        cwd: Path,
        log: Path,
        timeout_s: float,
        attempt_id: str,
        lease: Lease | None = None,
        isolation: Mapping[str, Any] | None = None,
        grace_s: float = TERM_GRACE_S,
    ) -> None:
        """Start the commands, which have real paths and whole environments; their output is appended to `log`.

        `isolation` has the `user` that they run as (uid, gid, groups; None: this one), the `writable` paths and the
        `secret` ones; without it they may write and read whatever this process may. Cancelled commands have `grace_s`
        after SIGTERM.
        """
        self._commands, self._attempt_id = commands, attempt_id
        request = {
            "commands": [
                {
                    "argv": list(command.argv),
                    "env": {**command.env, ATTEMPT_VARIABLE: attempt_id},
                    "title": mask_userinfo(shlex.join(command.argv)),
                }
                for command in commands
            ],
            "cwd": str(cwd),
            "timeout_s": float(timeout_s),
            "lease_s": lease.lease_s if lease else None,
            "grace_s": grace_s,
            "isolation": isolation,
        }
        with ExitStack() as own_files, ExitStack() as supervisor_files:
            output = supervisor_files.enter_context(log.open("ab"))
            request_file = supervisor_files.enter_context(open(os.memfd_create("request"), "wb", buffering=0))
            request_file.write(marshal.dumps(request))
            cancel_end, self._cancel_pipe = _open_pipe(supervisor_files, own_files)
            self._reports, report_end = _open_pipe(own_files, supervisor_files)
            files = [file.fileno() for file in (cancel_end, report_end, output, request_file)]
            fork_server.request_run([*files, lease.fd] if lease else files)
            self._files = own_files.pop_all()

    def cancel(self) -> None:
        """Request the end, from any thread; `wait` returns when no process is left."""
        self._cancel_pipe.close()

    def wait(self) -> RunResult:
        """Block until all commands have ended, and everything that they started."""
        commands: list[CommandResult] = []
        result: RunResult | None = None
        for report in self._read_reports():  # to the end of the stream: until then some process may be left
            if "reason" in report:
                result = RunResult(EndReason(report["reason"]), tuple(commands), report["errno"])
            else:
                argv = self._commands[len(commands)].argv
                usage = report["exit_code"], report["wall_s"], report["peak_rss_bytes"], report["cpu_s"]
                commands.append(CommandResult(Process(argv, *usage), report["log_start"], report["log_end"]))
        if result is None:
            kill_attempt(self._attempt_id)
        return result or RunResult(EndReason.LOST, tuple(commands))

    def _read_reports(self) -> Iterator[Mapping[str, Any]]:
        with suppress(EOFError, ValueError, TypeError):  # marshal raises any of them for a stream that was cut off
            while True:
                yield marshal.load(self._reports)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.cancel()
        self._reports.read()
        self._files.close()


def _open_pipe(reader: ExitStack, writer: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Open a pipe, and return its read end and its write end, each to be closed by its owner."""
    read_end, write_end = os.pipe()
    return reader.enter_context(open(read_end, "rb")), writer.enter_context(open(write_end, "wb", buffering=0))
