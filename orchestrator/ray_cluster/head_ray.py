"""The Ray that a head starts. It outlives its head, so that the next one finds nodes, agents and what they run."""

import fcntl
import os
import select
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import tenacity

from jobs.errors import ClusterUnreachable
from orchestrator.ray_cluster import ray_commands, ray_start, reaper
from orchestrator.ray_cluster.private_folder import ensure_private, ray_folder
from orchestrator.ray_cluster.ray_address import expect_answer

LAST_ADDRESS = "ray_current_cluster"  #: Ray's file that keeps a second `ray start --head` from starting
CONTROL_STORE, RAYLET = "gcs_server", "raylet"
PROGRAMS = (CONTROL_STORE, RAYLET)  #: Ray can't do without any of these
ANSWER_S = 10.0  #: a restarted control store listens within tenths of one
POLL_S = 0.05
LOOK_EVERY_S = 0.5
MISSES = 3  #: a log is there before its process is
FREE_S = 1.0


#: A control store has logs of its own.
NO_OUTPUT = (
    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
)


class RayCluster(Protocol):
    """The Ray that a head uses."""

    is_interrupted: Callable[[], bool]  #: whether waits for Ray are to end

    @property
    def address(self) -> str:
        """HOST:PORT of the control store."""

    def ensure(self) -> bool:
        """Make sure that Ray runs; return whether it was started now. Raises ClusterUnreachable."""

    def is_alive(self) -> bool:
        """Whether Ray's processes live, as far as can be told at once."""

    def end(self) -> None:
        """End Ray, if the head started it."""

    def leave(self) -> None:
        """Leave Ray running when this process ends."""


class ExternalRay:
    """A Ray that somebody else started."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_interrupted: Callable[[], bool] = lambda: False

    def ensure(self) -> bool:
        """Raise ClusterUnreachable if Ray does not run: it is not started from here."""
        expect_answer(self.address)
        return False

    def is_alive(self) -> bool:
        """Whether anything listens at Ray's address."""
        try:
            expect_answer(self.address)
        except ClusterUnreachable:
            return False
        return True

    def end(self) -> None:
        """Do nothing: Ray is not this head's."""

    def leave(self) -> None:
        """Do nothing."""


class HeadRay:
    """Ray's control processes on this machine, under the data folder of their head."""

    def __init__(self, data: Path, host: str, port: int, token: Mapping[str, str]) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port, self._token = host, port, token
        self._state = data / "ray" / "state"
        self._log = data / "logs" / "ray-head.log"
        ensure_private(self._state.parent)
        self._folder = ray_folder(data, "head")
        self.is_interrupted: Callable[[], bool] = lambda: False  #: whether a start is to be given up
        self._lock: int | None = None
        self._store_command: tuple[list[str], dict[str, str]] | None = (
            None  #: argv and environment of the control store
        )
        self._living: dict[str, int] = {}  #: a pidfd of each process, by program

    @property
    def logs(self) -> Path:
        """Where Ray's own logs lie."""
        return self._folder / "session_latest" / "logs"

    def ensure(self) -> bool:
        """Attach to Ray if it lives; otherwise start it with its stored state, if there is any."""
        if self.is_alive():
            return False
        self._expect_no_other_head()
        self._find_processes()
        if self.is_alive():
            return False
        if self._restart_control_store():
            return True
        self._clear()
        self._expect_free_port()
        self._start_with_state()
        self._find_processes()
        return True

    def is_alive(self) -> bool:
        """Whether the processes that were found last are alive."""
        if self._living.keys() != set(PROGRAMS):
            return False
        ends = select.poll()
        for descriptor in self._living.values():
            ends.register(descriptor, select.POLLIN)
        return not ends.poll(0)

    def control_store_logs(self) -> set[Path]:
        """Return the logs that control stores have begun, one for each start of Ray."""
        return set(self._folder.glob(f"session_*/logs/{CONTROL_STORE}.out"))

    def has_control_store(self) -> bool:
        """Whether a control store runs; all processes are looked at."""
        self._find_processes()
        return CONTROL_STORE in self._living

    def end(self) -> None:
        """End every process of Ray, and remove its folder; nodes notice by themselves."""
        self._forget()
        reaper.end_all(str(self._folder), os.getpid())
        self.leave()

    def leave(self) -> None:
        """Leave Ray running when this process ends."""
        self._forget()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _expect_no_other_head(self) -> None:
        """Hold a lock: a head that ends still has its Ray to end, and heads of other databases may share the folder."""
        if self._lock is not None:
            return
        lock = os.open(self._state.with_name("head.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            remedy = "end it, or set HALOCTL_DATA to a folder of its own for each"
            raise ClusterUnreachable(
                f"Ray at {self.address}", f"it is already in use by another head; {remedy}"
            ) from error
        self._lock = lock

    def _restart_control_store(self) -> bool:
        """Restart the control store alone, when everything else lives and only has to reconnect."""
        if self._living.keys() != {RAYLET} or self._store_command is None:
            return False
        argv, environment = self._store_command
        os.posix_spawn(argv[0], argv, environment, file_actions=NO_OUTPUT, setsid=True)
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(ANSWER_S),
            wait=tenacity.wait_fixed(POLL_S),
            retry=tenacity.retry_if_exception_type(ClusterUnreachable),
            reraise=True,
        )
        try:
            retrying(expect_answer, self.address)
        except ClusterUnreachable:
            return False
        self._find_processes()
        return self.is_alive()

    def _start_with_state(self) -> None:
        """Start Ray; if its control store was killed meanwhile start it again, then without its state."""
        steps: tuple[Callable[[], bool], ...] = (lambda: True, self._set_state_aside)
        for may_go_on in steps:
            try:
                self._start()
                return
            except ClusterUnreachable:
                self._clear()
                if self.is_interrupted() or not may_go_on():
                    raise
        self._start()

    def _start(self) -> None:
        for folder in (self._state, self._log.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = ray_commands.head_command(self._host, self._port, self._folder)
        environment = ray_commands.environment(self._folder, self._token) | ray_commands.persistent_state(self._state)
        ray_start.start(command, environment, self._log, f"Ray at {self.address}", _Watch(self).reason_to_give_up)

    def _set_state_aside(self) -> bool:
        """Move the stored state away, which loses no result; return whether there was any."""
        if not self._state.exists() or not any(self._state.iterdir()):
            return False
        aside = self._state.with_name("state-that-could-not-be-used")
        shutil.rmtree(aside, ignore_errors=True)
        self._state.rename(aside)
        return True

    def _find_processes(self) -> None:
        """Find the processes of the Ray at this address; the folder may have others."""
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
        client = {f"--gcs-address={self.address}"}
        store = {f"--gcs_server_port={self._port}", f"--node-ip-address={self._host}"}
        return client <= set(argv) or store <= set(argv)

    def _forget(self) -> None:
        while self._living:
            os.close(self._living.popitem()[1])

    def _clear(self) -> None:
        """End what is left of a Ray that has lost a process."""
        self._forget()
        reaper.end_processes(str(self._folder), os.getpid())
        (self._folder / LAST_ADDRESS).unlink(missing_ok=True)

    def _expect_free_port(self) -> None:
        """Raise ClusterUnreachable if the port stays taken: that of a killed process is free a moment later."""
        until = time.monotonic() + FREE_S
        while (reason := self._bind_error()) and time.monotonic() < until:
            time.sleep(POLL_S)
        if reason:
            remedy = "choose a free --port, and give an address of this machine as --host"
            raise ClusterUnreachable(f"{self.address} for Ray", f"{reason}; {remedy}")

    def _bind_error(self) -> str:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, self._port))
            except OSError as error:
                return error.strerror or str(error)
        return ""


class _Watch:
    """Watches a start of Ray, which itself waits for half a minute for a control store that was killed."""

    def __init__(self, ray: HeadRay) -> None:
        self._ray, self._earlier_logs = ray, ray.control_store_logs()
        self._next_look_at = 0.0
        self._misses = 0  #: looks in a row without a control store, although one was started

    def reason_to_give_up(self) -> str | None:
        """Return why the start can't succeed or is not wanted any more."""
        if self._ray.is_interrupted():
            return "a signal came while it started"
        if time.monotonic() < self._next_look_at:
            return None
        self._next_look_at = time.monotonic() + LOOK_EVERY_S
        is_missing = self._ray.control_store_logs() > self._earlier_logs and not self._ray.has_control_store()
        self._misses = self._misses + 1 if is_missing else 0
        return "its control store ended while it started" if self._misses >= MISSES else None


def _strings(file: str) -> list[str]:
    """Return the zero-terminated strings of a file in /proc."""
    return os.fsdecode(Path(file).read_bytes()).rstrip("\0").split("\0")
