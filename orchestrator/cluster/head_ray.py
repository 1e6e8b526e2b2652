"""The Ray that a head starts. It outlives its head, so that the next one finds nodes, agents and what they run."""

import fcntl
import os
import select
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from jobs.errors import ClusterUnreachable
from orchestrator.cluster import ray_commands, ray_start, reaper
from orchestrator.cluster.ray_address import expect_answer

LAST_ADDRESS = "ray_current_cluster"  #: Ray's file that keeps a second `ray start --head` from starting
CONTROL_STORE, RAYLET = "gcs_server", "raylet"
PROGRAMS = (CONTROL_STORE, RAYLET)  #: without any of which it is of no use
ANSWERS_S = 10.0  #: a control store that is started again listens within tenths of one
LOOK_AGAIN_S = 0.05
FREE_S = 1.0


#: What it says goes to Ray's logs.
QUIET = (
    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
)


class ClusterRay(Protocol):
    """Where a head's Ray is, and what it takes to have it run."""

    @property
    def address(self) -> str:
        """HOST:PORT of its control store."""

    def ensure(self) -> bool:
        """Make sure that it runs; whether it was started now. Raises ClusterUnreachable."""

    def is_alive(self) -> bool:
        """Whether its processes live, as far as can be seen from here at once."""

    def end(self) -> None:
        """End it, if it is the head's own."""

    def leave(self) -> None:
        """Let it go on without this process."""


class OthersRay:
    """A Ray that somebody else started."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ensure(self) -> bool:
        """It is there or it is not."""
        expect_answer(self.address)
        return False

    def is_alive(self) -> bool:
        """Whether anybody listens at its address."""
        try:
            expect_answer(self.address)
        except ClusterUnreachable:
            return False
        return True

    def end(self) -> None:
        """It is not ours to end."""

    def leave(self) -> None:
        """It goes on."""


class HeadRay:
    """Ray's control processes on this machine, under the data folder of their head."""

    def __init__(self, data: Path, host: str, port: int, token: Mapping[str, str]) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port, self._token = host, port, token
        self._state = data / "ray" / "state"
        self._log = data / "logs" / "ray-head.log"
        self._state.parent.mkdir(mode=0o700, exist_ok=True)
        self._folder = ray_commands.short_folder(data, "head")
        self._lock: int | None = None
        self._store_command: tuple[list[str], dict[str, str]] | None = None  #: as the control store was started
        self._living: dict[str, int] = {}  #: by program: a file descriptor that can be read when the process is gone

    @property
    def logs(self) -> Path:
        """Where Ray's own logs lie."""
        return self._folder / "session_latest" / "logs"

    def ensure(self) -> bool:
        """Attach to it where it lives, else start it: with what it knew, unless somebody wiped that."""
        if self.is_alive():
            return False
        self._expect_no_other_head()
        self._look()
        if self.is_alive():
            return False
        if self._has_revived_store():
            return True
        self._clear()
        self._expect_free_port()
        try:
            self._start()
        except ClusterUnreachable:
            if not self._set_state_aside():
                raise
            self._clear()
            self._start()
        self._look()
        return True

    def is_alive(self) -> bool:
        """Whether the processes live that were there when it was last looked for."""
        if self._living.keys() != set(PROGRAMS):
            return False
        ends = select.poll()
        for descriptor in self._living.values():
            ends.register(descriptor, select.POLLIN)
        return not ends.poll(0)

    def end(self) -> None:
        """End every process of it, and remove its folder; nodes find out by themselves."""
        self._forget()
        reaper.end_all(str(self._folder), os.getpid())
        self.leave()

    def leave(self) -> None:
        """Let it go on without this process."""
        self._forget()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _expect_no_other_head(self) -> None:
        """Hold a lock: a head that ends still has its Ray to end, and heads with different databases may meet here."""
        if self._lock is not None:
            return
        lock = os.open(self._state.with_name("head.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            remedy = "end it, or set HALOCTL_DATA to a folder of its own for each"
            raise ClusterUnreachable(f"Ray at {self.address}", f"another head has it in its hands; {remedy}") from error
        self._lock = lock

    def _has_revived_store(self) -> bool:
        """Start the control store alone, where all else lives and has but to connect to it again."""
        if self._living.keys() != {RAYLET} or self._store_command is None:
            return False
        argv, environment = self._store_command
        os.posix_spawn(argv[0], argv, environment, file_actions=QUIET, setsid=True)
        until = time.monotonic() + ANSWERS_S
        while time.monotonic() < until:
            with suppress(ClusterUnreachable):
                expect_answer(self.address)
                self._look()
                return self.is_alive()
            time.sleep(LOOK_AGAIN_S)
        return False

    def _start(self) -> None:
        for folder in (self._state, self._log.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = ray_commands.head_command(self._host, self._port, self._folder)
        environment = ray_commands.environment(self._folder, self._token) | ray_commands.keeps_state_in(self._state)
        ray_start.start(command, environment, self._log, f"Ray at {self.address}")

    def _set_state_aside(self) -> bool:
        """Have the next start begin with nothing, which costs no result; whether there was any state."""
        if not self._state.exists() or not any(self._state.iterdir()):
            return False
        aside = self._state.with_name("state-that-could-not-be-used")
        shutil.rmtree(aside, ignore_errors=True)
        self._state.rename(aside)
        return True

    def _look(self) -> None:
        """Find the processes of the Ray that this is about: those of one at another address are none of them."""
        self._forget()
        for pid in reaper.processes(str(self._folder)):
            with suppress(OSError):
                argv = _strings(f"/proc/{pid}/cmdline")
                name = Path(argv[0]).name
                if name in PROGRAMS and self._is_ours(argv):
                    self._living[name] = os.pidfd_open(pid)
                if name == CONTROL_STORE and name in self._living:
                    variables = (variable.split("=", 1) for variable in _strings(f"/proc/{pid}/environ"))
                    self._store_command = argv, {variable[0]: variable[1] for variable in variables if variable[1:]}

    def _is_ours(self, argv: list[str]) -> bool:
        here = {f"--gcs-address={self.address}"}
        store = {f"--gcs_server_port={self._port}", f"--node-ip-address={self._host}"}
        return here <= set(argv) or store <= set(argv)

    def _forget(self) -> None:
        while self._living:
            os.close(self._living.popitem()[1])

    def _clear(self) -> None:
        """End what is left of a Ray that lost a process."""
        self._forget()
        reaper.end_processes(str(self._folder), os.getpid())
        (self._folder / LAST_ADDRESS).unlink(missing_ok=True)

    def _expect_free_port(self) -> None:
        """A killed process's port is free a moment after it."""
        until = time.monotonic() + FREE_S
        while (reason := self._why_not_free()) and time.monotonic() < until:
            time.sleep(LOOK_AGAIN_S)
        if reason:
            remedy = "say --port with one that is free, and --host with an address of this machine"
            raise ClusterUnreachable(f"{self.address} for Ray", f"{reason}; {remedy}")

    def _why_not_free(self) -> str:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, self._port))
            except OSError as error:
                return error.strerror or str(error)
        return ""


def _strings(file: str) -> list[str]:
    """What the kernel tells of a process, each with a zero at its end."""
    return os.fsdecode(Path(file).read_bytes()).rstrip("\0").split("\0")
