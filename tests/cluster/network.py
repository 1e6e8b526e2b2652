"""Network namespaces as hosts of a network: each has an address and a cable that can be cut.

The cables end in a bridge in one more namespace, so that nothing is added to the machine's own network, and several
runs of the tests may have the same addresses at once.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PREFIX = "haloctl-test"  #: of the names of all namespaces: `haloctl-test-PID-HOST`
SWITCH = "switch"
BRIDGE = "bridge"
NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
ADDRESS = "10.77.0.{}"
MASK_BITS = 24
NOBODY = "02:00:00:00:00:00"  #: no host has this hardware address


def ip(*arguments: str) -> None:
    """Change the network, as `ip` does."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"


def why_not() -> str | None:
    """Why this machine can have no namespaces."""
    if shutil.which("ip") is None:
        return "network namespaces need `ip` of iproute2, which is not on PATH"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"{PREFIX}-{os.getpid()}-probe"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except AssertionError as error:
        return f"this machine forbids network namespaces: {error}"
    return None


class Cable:
    """One host's end of the network."""

    def __init__(self, switch: str, host: str, number: int) -> None:
        self.namespace, self.address = f"{PREFIX}-{os.getpid()}-{host}", ADDRESS.format(number)
        self._switch, self._port = switch, f"port{number}"
        ip("netns", "add", self.namespace)
        ip("-n", switch, "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        ip("-n", switch, "link", "set", self._port, "master", BRIDGE, "up")
        ip("-n", self.namespace, "address", "add", f"{self.address}/{MASK_BITS}", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", self.namespace, "link", "set", device, "up")

    def cut(self) -> None:
        """Drop everything that is sent to or from the host from now on; no peer is notified."""
        ip("netns", "exec", self._switch, "bridge", "link", "set", "dev", self._port, "state", "disabled")

    def heal(self) -> None:
        """Everything arrives again."""
        ip("netns", "exec", self._switch, "bridge", "link", "set", "dev", self._port, "state", "forwarding")

    def lose(self, address: str) -> None:
        """Drop everything that is sent from here to another host from now on; no peer is notified."""
        ip("-n", self.namespace, "neighbour", "replace", address, "lladdr", NOBODY, "nud", "permanent", "dev", "eth0")

    def find(self, address: str) -> None:
        """That host is where it was."""
        ip("-n", self.namespace, "neighbour", "delete", address, "dev", "eth0")

    def processes(self) -> list[psutil.Process]:
        """All that live in the namespace, whoever started them."""
        return [process for process in psutil.process_iter() if self._is_home_of(process)]

    def _is_home_of(self, process: psutil.Process) -> bool:
        with suppress(OSError):
            home = os.stat(f"/proc/{process.pid}/ns/net")
            return os.path.samestat(home, os.stat(NAMESPACES / self.namespace))
        return False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What this thread starts meanwhile, and the sockets that it opens, are the host's."""
        with open("/proc/thread-self/ns/net") as home, open(NAMESPACES / self.namespace) as host:
            _enter(host.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Network:
    """A switch, and the hosts that were plugged in."""

    def __init__(self) -> None:
        self._switch = f"{PREFIX}-{os.getpid()}-{SWITCH}"
        self._count = 0
        self._cables: list[Cable] = []
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", BRIDGE, "type", "bridge")
        ip("-n", self._switch, "link", "set", BRIDGE, "up")

    def plug(self, host: str) -> Cable:
        """Add a host."""
        self._count += 1
        cable = Cable(self._switch, host, self._count)
        self._cables.append(cable)
        return cable


@contextmanager
def network() -> Iterator[Network]:
    """A network for as long as the context lasts. What killed runs of the tests left is removed first."""
    remove_leftovers()
    try:
        yield Network()
    finally:
        _remove(f"{PREFIX}-{os.getpid()}-")


def remove_leftovers() -> None:
    """Remove the namespaces that ended runs left, and the processes in them."""
    for path in NAMESPACES.glob(f"{PREFIX}-*"):
        owner = path.name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if not psutil.pid_exists(int(owner)):
            _remove(f"{PREFIX}-{owner}-")


def _remove(beginning: str) -> None:
    """Remove a namespace of an ended run; other runs may be removing it at the same time."""
    for path in NAMESPACES.glob(f"{beginning}*"):
        pids = subprocess.run(["ip", "netns", "pids", path.name], capture_output=True, text=True, check=False)
        for pid in map(int, pids.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        try:
            ip("netns", "delete", path.name)
        except AssertionError:
            if path.exists():
                raise
