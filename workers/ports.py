"""Ports to listen at that are still free when somebody comes to do it, and when he comes back."""

import socket
from contextlib import closing
from pathlib import Path
from random import SystemRandom

#: The first and the last of the ports that the kernel gives away: to listeners and connections that ask for any.
GIVEN_AWAY = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST = 20_000  #: those below it are known services', and Ray's workers'
TRIES = 100


def free_port(host: str = "", given_away: Path = GIVEN_AWAY) -> int:
    """A port of an address that nobody listens at, and that the kernel gives to nobody; any free one where it gives
    all of them away."""
    end = int(given_away.read_text().split()[0])
    kept = range(FIRST, end)
    for port in SystemRandom().sample(kept, min(TRIES, len(kept))):
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
