"""A real Ray cluster on loopback: a head that runs nothing, and raylets as nodes with separate data folders."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from jobs.task import GIB, Device, Node
from orchestrator.ray_cluster import ray_commands, ray_start, ray_token, reaper
from orchestrator.ray_cluster.head_ray import HeadRay
from orchestrator.ray_cluster.private_folder import ray_folder
from tests.command_lines import command_line
from tests.integration.attempts import until
from workers.agent.ports import free_port

CPUS = 4


class Cluster:
    """The processes of a cluster, by name."""

    def __init__(self, data: Path) -> None:
        self.data = data
        ray_token.use_own_token(data)
        self.token = {name: os.environ[name] for name in ray_token.VARIABLES if name in os.environ}
        self._head = HeadRay(data, "127.0.0.1", free_port("127.0.0.1"), self.token)
        self._folders: dict[str, Path] = {}

    @property
    def address(self) -> str:
        return self._head.address

    def node_data(self, name: str) -> Path:
        return self.data / "nodes" / name

    def folders(self) -> list[Path]:
        """Ray's folders of the head and of the nodes."""
        return [ray_folder(self.data, "head"), *self._folders.values()]

    def start(self) -> None:
        """Start the head, or restart it with its state."""
        (self.data / "logs").mkdir(exist_ok=True)
        self._head.ensure()

    def join(self, name: str) -> None:
        """Start a node's raylet."""
        data = self.node_data(name)
        data.mkdir(parents=True, exist_ok=True)
        node = Node(name, name, CPUS, GIB, tuple(Device("cpu", index) for index in range(8)))
        folder = self._folders[name] = ray_folder(data, "node")
        command = ray_commands.node_command(self.address, "127.0.0.1", node, folder)
        inherited = {name: value for name, value in os.environ.items() if name not in ray_commands.LOOPBACK}
        environment = ray_commands.environment(folder, self.token, inherited) | {"HALOCTL_DATA": str(data)}
        ray_start.start(command, environment, data / "ray.log", "the test's node")

    def control_store(self) -> psutil.Process:
        return self._process(ray_folder(self.data, "head"), "gcs_server")

    def raylet(self, name: str) -> psutil.Process:
        return self._process(self._folders[name], "raylet")

    def agent(self, name: str) -> psutil.Process:
        return self._process(self._folders[name], "ray::Agent")

    def end_node(self, name: str) -> None:
        reaper.end_all(str(self._folders.pop(name)), os.getpid())

    def wipe(self) -> None:
        """Wipe Ray's state."""
        reaper.end_processes(str(ray_folder(self.data, "head")), os.getpid())
        state = self.data / "ray" / "state"
        state.rename(state.with_name(f"state-{len(list(state.parent.iterdir()))}"))
        for name in list(self._folders):
            self.end_node(name)
        self.start()

    def close(self) -> None:
        for name in list(self._folders):
            self.end_node(name)
        self._head.end()

    def _process(self, folder: Path, title: str) -> psutil.Process:
        """The one with this title, once there is no other: a child that was just forked still has its parent's."""
        processes: list[psutil.Process] = []

        def is_one() -> bool:
            processes[:] = _titled(folder, title)
            return len(processes) == 1

        until(is_one, f"one {title} is there")
        return processes[0]


@contextmanager
def running_cluster(data: Path) -> Iterator[Cluster]:
    cluster = Cluster(data)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Stop a process while the context lasts."""
    process.send_signal(signal.SIGSTOP)
    until(lambda: process.status() == psutil.STATUS_STOPPED, "the process is stopped")
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):  # it may have been killed meanwhile
            process.send_signal(signal.SIGCONT)


def _titled(folder: Path, title: str) -> list[psutil.Process]:
    processes = []
    for pid in reaper.processes(str(folder)):
        with suppress(psutil.NoSuchProcess):
            if title in _title(process := psutil.Process(pid)):
                processes.append(process)
    return processes


def _title(process: psutil.Process) -> str:
    return Path(next(iter(command_line(process)), "")).name
