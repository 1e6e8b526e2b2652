"""What `haloctl node` does: joins, joins again when it has to, and leaves when a signal asks it to."""

import fcntl
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import AlreadyRuns, BadSetting, ClusterUnreachable
from jobs.task import Node
from orchestrator.cluster import ray_commands, reaper
from orchestrator.cluster.node_ray import NodeRay
from orchestrator.cluster.ray_address import HOST_AND_PORT, LOOPBACK, expect_answer
from orchestrator.cluster.signals import Signals, awaited
from workers import draining, guard
from workers.draining import Drain

TRY_AGAIN_S = 1.0
LOOK_AGAIN_S = 0.1
JOIN_S = 60.0
AGENT = b"ray::Agent"  #: the title of an agent's process
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")  #: what may be a label of Ray's

Say = Callable[[str], None]


@dataclass(frozen=True)
class Joining:
    """What is to join which cluster."""

    node: Node
    head: str  #: HOST:PORT
    token: Mapping[str, str]
    data: Path
    leaves: Drain  #: what becomes of what runs when it is told to leave


class NodeDaemon:
    """A node, for as long as no signal comes."""

    def __init__(self, joining: Joining, say: Say) -> None:
        self._joining, self._say_always = joining, say
        self._name, self._data = joining.node.id, joining.data
        self._folder = ray_commands.short_folder(joining.data, "node")
        self._log = joining.data / "logs" / "ray-node.log"
        self._said = ""
        self._has_joined = False

    def run(self) -> None:
        """Join and stay. Raises ClusterUnreachable where it is refused, and AlreadyRuns."""
        self._log.parent.mkdir(mode=0o700, exist_ok=True)
        guard.adopt_orphans()
        with alone(self._data), awaited() as signals:
            draining.withdraw(self._data)
            while not signals.count:
                try:
                    self._be_member(signals)
                except ClusterUnreachable as error:
                    if not self._has_joined:
                        raise
                    self._say(f"node {self._name}: {error}; trying again")
                    signals.wait(timeout_s=TRY_AGAIN_S)
            draining.withdraw(self._data)
        self._say(f"node {self._name} has left")

    def _be_member(self, signals: Signals) -> None:
        """Be in the cluster once: until the raylet ends, or a signal has come and nothing is left."""
        if not self._has_answer(signals):
            return
        reaper.end_processes(str(self._folder), os.getpid())  # of a daemon that was killed together with its keeper
        head = self._joining.head
        with closing(self._raylet()) as ray:
            if not ray.until_up(signals, JOIN_S, f"the cluster at {head}"):
                return
            self._has_joined = True
            self._say(f"node {self._name} ({in_words(self._joining.node)}) has joined the cluster at {head}")
            signals.wait([ray.news])
            if signals.count:
                self._drain(ray, signals)
            else:
                self._say(f"node {self._name} is out of the cluster: its raylet has ended; joining again")

    def _has_answer(self, signals: Signals) -> bool:
        """Wait until somebody listens where the head is to be; False where a signal came before."""
        while not signals.count:
            try:
                expect_answer(self._joining.head)
            except ClusterUnreachable as error:
                self._say(f"node {self._name} waits for the head: {error}")
                signals.wait(timeout_s=TRY_AGAIN_S)
            else:
                return True
        return False

    def _raylet(self) -> NodeRay:
        joining = self._joining
        command = ray_commands.node_command(joining.head, joining.node.address, joining.node, self._folder)
        environment = ray_commands.environment(self._folder, joining.token) | {"HALOCTL_DATA": str(self._data)}
        return NodeRay(command, environment, self._log)

    def _drain(self, ray: NodeRay, signals: Signals) -> None:
        """Wait until the agent has nothing left; another signal has it hand back what runs, a third one ends it."""
        wishes = [*dict.fromkeys((self._joining.leaves, Drain.HAND_BACK))]
        asked = 0
        while _has_agent() and not draining.is_done(self._data) and signals.count <= len(wishes):
            if signals.count > asked:
                asked = signals.count
                draining.ask(self._data, wishes[asked - 1])
                self._say(f"node {self._name} leaves: {LEAVING[wishes[asked - 1]]}")
            if signals.wait([ray.news], LOOK_AGAIN_S) and signals.count == asked:
                return  # the raylet has ended

    def _say(self, text: str) -> None:
        """Tell what was not the last thing to be told."""
        if text != self._said:
            self._say_always(text)
        self._said = text


LEAVING = {
    Drain.FINISH: "what runs here may finish; another signal has it handed back to the queue",
    Drain.HAND_BACK: "what runs here is ended and handed back to the queue",
}


def checked_name(name: str) -> str:
    """A node's name; raises BadSetting for one that Ray can't take as a label."""
    if not NAME.fullmatch(name):
        raise BadSetting(
            "--name", f"{name!r} is no name: up to 63 letters, digits, '.', '_' and '-' are, such as gpu-07"
        )
    return name


def own_address(head: str) -> str:
    """This machine's address as the head sees it. Raises BadSetting where that can't be said."""
    found = HOST_AND_PORT.fullmatch(head)
    if not found:
        raise BadSetting("--head", f"{head!r} is not HOST:PORT, such as 10.0.0.1:6379")
    host = found["host"].strip("[]")
    if host in LOOPBACK:
        return "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(found["port"])))  # sends nothing
            address: str = probe.getsockname()[0]
            return address
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterUnreachable(f"the head at {head}", f"{reason}; check --head, or say --address") from error


def in_words(node: Node) -> str:
    """What a node has: `8 x mi300x, 8 x cpu`."""
    counts = Counter(device.kind for device in node.devices)
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(counts.items(), reverse=True)) or "no devices"


@contextmanager
def alone(data: Path) -> Iterator[None]:
    """Raise AlreadyRuns where another node uses the data folder."""
    with (data / "node.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            remedy = "end it, or set HALOCTL_DATA to a folder of its own for each"
            raise AlreadyRuns(f"a node with the data folder {data}", remedy) from error
        yield


def _has_agent() -> bool:
    """Whether an agent lives below this process."""
    return any(_title(pid).startswith(AGENT) for pid in guard.descendants())


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
