"""The agent's side of keeper and guards: start commands, wait for them, cancel them, find what lost guards left."""

import marshal
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from jobs.task import Command, Process

ATTEMPT_VARIABLE = "HALOCTL_ATTEMPT"  #: in the environment of every process of an attempt
SWEEP_PAUSE_S = 0.01

#: Imported, not run as a file, so that its bytecode is taken from __pycache__.
KEEPER = (
    sys.executable,
    *("-I", "-S", "-c", "import sys; sys.path.append(sys.argv[1]); from workers import keeper; keeper.main()"),
    str(Path(__file__).parents[1]),
)


class End(StrEnum):
    """How a run of commands ended."""

    DONE = "done"
    FAILED = "failed"  #: the last one that ran has an exit code
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  #: the lease was over
    UNABLE = "unable"  #: the guard could not go on: `errno` says why
    LOST = "lost"  #: the guard was killed


@dataclass(frozen=True)
class Ran:
    """A command that ran, and where in the log its output lies."""

    process: Process
    log_start: int
    log_end: int


@dataclass(frozen=True)
class Ended:
    """What became of a run of commands; no process of theirs is left."""

    how: End
    ran: tuple[Ran, ...]
    errno: int = 0


class Cancellation:
    """Somebody's wish that something ends: made in one thread, carried out in another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_wished = False
        self._act: Callable[[], None] | None = None

    @property
    def is_wished(self) -> bool:
        """Whether it was."""
        return self._is_wished

    def cancel(self) -> None:
        """Wish it; again changes nothing."""
        with self._lock:
            act, self._is_wished = (None if self._is_wished else self._act), True
        if act:
            act()

    def calls(self, act: Callable[[], None]) -> None:
        """Have `act` called when it is wished, or now if it was."""
        with self._lock:
            self._act = act
            is_wished = self._is_wished
        if is_wished:
            act()


class Lease:
    """How long guards go on without a word from their agent, which may be stopped or hang.

    One for all the guards of an agent, however many: renewing it wakes none of them.
    """

    def __init__(self, lease_s: float) -> None:
        """Renewed just now."""
        self.lease_s = lease_s
        self.fd = os.memfd_create("lease")
        weakref.finalize(self, os.close, self.fd)
        self._lock = threading.Lock()
        self._heard = 0.0
        self.renew()

    def renew(self, heard: float | None = None) -> None:
        """Let everything go on until `lease_s` after `heard`, on the clock that also runs while the machine sleeps;
        from now on by default. From any thread; never takes back what an earlier call gave."""
        with self._lock:
            self._heard = max(self._heard, time.clock_gettime(time.CLOCK_BOOTTIME) if heard is None else heard)
            os.pwrite(self.fd, int(self._heard * 1e9).to_bytes(8, "little"), 0)


class Keeper:
    """The process that makes this one's guards: started for the first one, and again when it was killed.

    With it end all the guards that it made. It ends with this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None before there is one."""
        return self._process.pid if self._process else None

    def make_guard(self, files: Sequence[int]) -> None:
        """Have a guard made that gets these files; see workers.keeper."""
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
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # without any attempt's variable: a sweep after the agent's death must not hit a guard at work
            self._process = subprocess.Popen(KEEPER, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/", env={})
        return self._requests


keeper = Keeper()


class Guarded:
    """Commands that run one after another under a guard; nothing of them outlives it, this process or this object."""

    def __init__(
        self,
        commands: Sequence[Command],
        cwd: Path,
        log: Path,
        timeout_s: float,
        attempt_id: str,
        lease: Lease | None = None,
    ) -> None:
        """Start the guard. Commands have real paths and whole environments; output is appended to `log`."""
        self._commands, self._attempt_id = commands, attempt_id
        request = {
            "commands": [_request(command, attempt_id) for command in commands],
            "cwd": str(cwd),
            "timeout_s": float(timeout_s),
            "lease_s": lease.lease_s if lease else None,
        }
        with ExitStack() as ours, ExitStack() as theirs:
            output = theirs.enter_context(log.open("ab"))
            wanted = theirs.enter_context(open(os.memfd_create("request"), "wb", buffering=0))
            wanted.write(marshal.dumps(request))
            wishes, self._wishes = _pipe(theirs, ours)
            self._reports, reports = _pipe(ours, theirs)
            files = [file.fileno() for file in (wishes, reports, output, wanted)]
            keeper.make_guard([*files, lease.fd] if lease else files)
            self._ours = ours.pop_all()

    def cancel(self) -> None:
        """Ask for an end, from any thread; wait() returns when nothing is left."""
        self._wishes.close()

    def wait(self) -> Ended:
        """Block until all commands have ended, and everything that they started."""
        ran: list[Ran] = []
        ended: Ended | None = None
        for report in self._messages():
            if "ended" in report:
                ended = Ended(End(report["ended"]), tuple(ran), report["errno"])
            else:
                ran.append(_ran(self._commands[len(ran)].argv, report))
        if ended is None:
            sweep(self._attempt_id)
        return ended or Ended(End.LOST, tuple(ran))

    def _messages(self) -> Iterator[Mapping[str, Any]]:
        with suppress(EOFError, ValueError, TypeError):  # what marshal says of a stream that was cut off
            while True:
                yield marshal.load(self._reports)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.cancel()
        self._reports.read()
        self._ours.close()


def _request(command: Command, attempt_id: str) -> dict[str, Any]:
    return {
        "argv": list(command.argv),
        "env": {**command.env, ATTEMPT_VARIABLE: attempt_id},
        "title": shlex.join(command.argv),
    }


def _ran(argv: tuple[str, ...], report: Mapping[str, Any]) -> Ran:
    process = Process(argv, report["exit_code"], report["wall_s"], report["peak_rss_bytes"], report["cpu_s"])
    return Ran(process, report["log_start"], report["log_end"])


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """A pipe's read end and its write end, each to be closed by its owner."""
    read_end, write_end = os.pipe()
    return reader.enter_context(open(read_end, "rb")), writer.enter_context(open(write_end, "wb", buffering=0))


def sweep(attempt_id: str) -> int:
    """Kill what carries an attempt's id in its environment until two looks in a row find nothing; how many processes
    that were.

    What just becomes another program has no environment for a moment: the second look is for it.
    """
    killed: set[int] = set()
    looks = 0
    while looks < 2:
        found = set(_carriers(attempt_id))
        looks = 0 if found else looks + 1
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        time.sleep(SWEEP_PAUSE_S)
    return len(killed)


def _carriers(attempt_id: str) -> Iterator[int]:
    wanted = f"{ATTEMPT_VARIABLE}={attempt_id}".encode()
    for folder in Path("/proc").glob("[1-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if int(folder.name) != os.getpid() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
