"""The node daemon: joins a cluster, rejoins it when it has to, and leaves it after a signal."""

import fcntl
import logging
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import AlreadyRunning, BadSetting, ClusterUnreachable
from jobs.task import Node
from orchestrator.ray_cluster import ray_commands, reaper
from orchestrator.ray_cluster.node_ray import NodeRay
from orchestrator.ray_cluster.private_folder import ray_folder
from orchestrator.ray_cluster.ray_address import HOST_AND_PORT, LOOPBACK, expect_answer
from orchestrator.ray_cluster.signal_queue import Signals, queue_signals
from workers import daemon_log
from workers.agent import draining
from workers.agent.draining import Drain
from workers.processes import proc, supervisor

RETRY_S = 1.0
POLL_S = 0.1
JOIN_S = 60.0
AGENT = b"ray::Agent"  #: the title of an agent's process
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")  #: a valid label in Ray

logger = daemon_log.logger(__name__)


@dataclass(frozen=True)
class JoinConfig:
    """The node that joins, and the cluster that it joins."""

    node: Node
    head: str  #: HOST:PORT
    token: Mapping[str, str]
    data: Path
    leaves: Drain  #: how it drains when it leaves


class NodeDaemon:
    """Keeps a node in its cluster until a signal comes."""

    def __init__(self, joining: JoinConfig) -> None:
        self._joining = joining
        self._name, self._data = joining.node.id, joining.data
        self._folder = ray_folder(joining.data, "node")
        self._ray_log = joining.data / "logs" / "ray-node.log"
        self._last_message = ""
        self._has_joined = False

    def run(self) -> None:
        """Join and stay. Raises ClusterUnreachable where it is refused, and AlreadyRunning."""
        self._ray_log.parent.mkdir(mode=0o700, exist_ok=True)
        supervisor.adopt_orphans()
        with hold_data_folder(self._data), queue_signals() as signals:
            draining.withdraw(self._data)
            while not signals.count:
                try:
                    self._be_member(signals)
                except ClusterUnreachable as error:
                    if not self._has_joined:
                        raise
                    self._log(logging.WARNING, f"{error}; trying again")
                    signals.wait(timeout_s=RETRY_S)
            draining.withdraw(self._data)
        self._log(logging.INFO, "has left")

    def _be_member(self, signals: Signals) -> None:
        """Be a member once: until the raylet ends, or until a signal has come and the node is drained."""
        if not self._has_answer(signals):
            return
        reaper.end_processes(str(self._folder), os.getpid())  # of a daemon that was killed together with its supervisor
        head = self._joining.head
        with closing(self._raylet()) as ray:
            if not ray.wait_until_up(signals, JOIN_S, f"the cluster at {head}"):
                return
            self._has_joined = True
            devices = format_node_devices(self._joining.node)
            self._log(logging.INFO, f"has joined the cluster at {head}, with {devices}")
            signals.wait([ray.news])
            if signals.count:
                self._drain(ray, signals)
            else:
                self._log(logging.WARNING, "is out of the cluster: its raylet has ended; joining again")

    def _has_answer(self, signals: Signals) -> bool:
        """Wait until the head answers; return False if a signal came first."""
        while not signals.count:
            try:
                expect_answer(self._joining.head)
            except ClusterUnreachable as error:
                self._log(logging.WARNING, f"waits for the head: {error}")
                signals.wait(timeout_s=RETRY_S)
            else:
                return True
        return False

    def _raylet(self) -> NodeRay:
        joining = self._joining
        command = ray_commands.node_command(joining.head, joining.node.address, joining.node, self._folder)
        environment = ray_commands.environment(self._folder, joining.token) | {"HALOCTL_DATA": str(self._data)}
        return NodeRay(command, environment, self._ray_log)

    def _drain(self, ray: NodeRay, signals: Signals) -> None:
        """Wait until the agent is drained; a second signal requeues what runs, a third one ends it."""
        drains = [*dict.fromkeys((self._joining.leaves, Drain.REQUEUE))]
        asked = 0
        while _has_agent() and not draining.is_drained(self._data) and signals.count <= len(drains):
            if signals.count > asked:
                asked = signals.count
                draining.request(self._data, drains[asked - 1])
                self._log(logging.INFO, f"leaves: {LEAVING[drains[asked - 1]]}")
            if signals.wait([ray.news], POLL_S) and signals.count == asked:
                return  # the raylet has ended

    def _log(self, level: int, what: str) -> None:
        """Log what became of the node, unless that repeats the last message."""
        if what != self._last_message:
            logger.log(level, "node %s %s", self._name, what, node=self._name)
        self._last_message = what


LEAVING = {
    Drain.FINISH: "what runs here may finish; another signal ends and requeues it",
    Drain.REQUEUE: "what runs here is ended and requeued",
}


def validate_node_name(name: str) -> str:
    """Return a node's name. Raises BadSetting for one that can't be a label in Ray."""
    if not NAME.fullmatch(name):
        raise BadSetting(
            "--name", f"{name!r} is not valid: use up to 63 letters, digits, '.', '_' and '-', such as gpu-07"
        )
    return name


def find_own_address(head: str) -> str:
    """Return this machine's address as the head sees it. Raises BadSetting or ClusterUnreachable."""
    match = HOST_AND_PORT.fullmatch(head)
    if not match:
        raise BadSetting("--head", f"{head!r} is not HOST:PORT, such as 10.0.0.1:6379")
    host = match["host"].strip("[]")
    if host in LOOPBACK:
        return "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(match["port"])))  # sends nothing
            address: str = probe.getsockname()[0]
            return address
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterUnreachable(f"the head at {head}", f"{reason}; check --head, or give --address") from error


def format_node_devices(node: Node) -> str:
    """Format a node's devices as `8 x mi300x, 8 x cpu`."""
    counts = Counter(device.kind for device in node.devices)
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(counts.items(), reverse=True)) or "no devices"


@contextmanager
def hold_data_folder(data: Path) -> Iterator[None]:
    """Raise AlreadyRunning where another node uses the data folder."""
    with (data / "node.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            remedy = "end it, or set HALOCTL_DATA to a folder of its own for each"
            raise AlreadyRunning(f"a node with the data folder {data}", remedy) from error
        yield


def _has_agent() -> bool:
    """Whether an agent lives below this process."""
    return any(_title(pid).startswith(AGENT) for pid in proc.descendants())


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
