"""Ports that are still free when a process comes to listen at them, and when it is restarted."""

import socket
from contextlib import closing
from pathlib import Path
from random import SystemRandom

#: The first and the last of the kernel's ephemeral ports, which it gives to listeners and connections that ask for any.
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_PORT = 20_000  #: those below belong to well-known services, and to Ray's workers
MAX_TRIES = 100


def free_port(host: str = "", ephemeral_ports: Path = EPHEMERAL_PORTS) -> int:
    """Return a port of an address that is free and not ephemeral; any free one where all ports are ephemeral."""
    end = int(ephemeral_ports.read_text().split()[0])
    candidates = range(FIRST_PORT, end)
    for port in SystemRandom().sample(candidates, min(MAX_TRIES, len(candidates))):
        if _is_free(host, port):
            return port
    with closing(socket.socket()) as probe:
        probe.bind((host, 0))
        any_port: int = probe.getsockname()[1]
        return any_port


def _is_free(host: str, port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
