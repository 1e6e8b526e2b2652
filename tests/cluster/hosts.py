"""Machines of a cluster, played by network namespaces, each with a separate data folder."""

import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.acceptance.haloctl import COMMAND, DEADLINE_S, ROOT, Haloctl, Running, until
from tests.cluster.network import Cable
from tests.command_lines import command_text

PORT = 6379
SITE = ROOT / "tests" / "cluster" / "site"  #: makes the stages known that tests.cluster.work has
CPU_DEVICES = 2
JOINED = "has joined the cluster"
LEADS = "head: leads\n"


#: Tasks of these tests tell by files that they run.
SETTINGS = {"HALOCTL_CPU_DEVICES": f"{CPU_DEVICES}", "HALOCTL_STAGE_WRITABLE": tempfile.gettempdir()}


class Host(Haloctl):
    """A machine: its haloctl, its cable and its processes."""

    def __init__(self, name: str, cable: Cable, folder: Path, **variables: str) -> None:
        self.name, self.cable, self.address = name, cable, cable.address
        self.command = ("ip", "netns", "exec", cable.namespace, *COMMAND)
        folder.mkdir()
        (folder / "tmp").mkdir()
        super().__init__(folder, folder / "tmp", **(SETTINGS | variables))
        self.environment["PYTHONPATH"] = f"{SITE}{os.pathsep}{self.environment['PYTHONPATH']}"

    def start_head(self, *options: str) -> Running:
        """Start `haloctl head` on this host's address, and wait until it leads."""
        head = self.start("head", "--host", self.address, *options)
        head.until_says(LEADS)
        return head

    def start_node(self, head: "Host", *options: str, waits: bool = True, **variables: str) -> Running:
        """Start `haloctl node` with a copy of the head's token, and wait until it has joined."""
        token = self.folder / "token"
        token.write_text(head.token.read_text())
        token.chmod(0o600)
        self.environment |= {"HALOCTL_RAY_TOKEN_FILE": str(token), **variables}
        node = self.start("node", "--head", f"{head.address}:{PORT}", "--name", self.name, *options)
        if waits:
            node.until_says(JOINED)
        return node

    @property
    def token(self) -> Path:
        """The file that a head here has its token in."""
        return self.data / "ray-token"

    def cut(self) -> None:
        """Cut the cable: nothing arrives, and no peer is notified."""
        self.cable.cut()

    def heal(self) -> None:
        """Mend the cable."""
        self.cable.heal()

    def processes(self) -> list[psutil.Process]:
        """Return all live processes of this host, without those of the tests themselves."""
        return self.cable.processes()

    def find(self, title: str) -> list[psutil.Process]:
        """This host's processes with a text in their command lines: `ray::Agent`, `raylet/raylet`, `gcs_server`."""
        return [process for process in self.processes() if title in command_text(process)]

    def until_found(self, title: str, deadline_s: float = DEADLINE_S) -> psutil.Process:
        """Wait for a process, and return it."""
        processes: list[psutil.Process] = []

        def is_found() -> bool:
            processes[:] = self.find(title)
            return bool(processes)

        until(is_found, lambda: f"{title} on {self.name}, but {self.describe()}", deadline_s)
        return processes[0]

    def cut_from(self, other: "Host") -> None:
        """Cut this host off from one other host; both still reach all the rest."""
        for host, peer in ((self, other), (other, self)):
            host.cable.lose(peer.address)

    def heal_to(self, other: "Host") -> None:
        """Let them reach each other again."""
        for host, peer in ((self, other), (other, self)):
            host.cable.find(peer.address)

    def send(self, number: signal.Signals, *titles: str) -> None:
        """Signal the processes of this host with one of the texts in their command lines; without any text, all."""
        for process in self.processes():
            if not titles or any(title in command_text(process) for title in titles):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def kill(self, *titles: str) -> None:
        """Kill processes of this host by the texts in their command lines; without any, all: the machine is off."""
        self.send(signal.SIGKILL, *titles)

    def describe(self) -> str:
        """Describe the live processes of this host, for messages."""
        return "; ".join(f"{process.pid} {command_text(process)[:100]}" for process in self.processes())


def until_equal(get: Callable[[], object], wanted: object, deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds; the failure message describes the state at the deadline."""
    last: list[object] = [None]

    def is_so() -> bool:
        last[0] = get()
        return last[0] == wanted

    until(is_so, lambda: f"{wanted}, but {last[0]}", deadline_s)
