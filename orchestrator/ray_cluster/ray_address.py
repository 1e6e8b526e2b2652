"""Whether a Ray cluster answers at its address. Ray itself would try for minutes."""

import re
import socket

from jobs.errors import ClusterUnreachable

CONNECT_TIMEOUT_S = 5.0
HOST_AND_PORT = re.compile(r"(?P<host>[^/]+):(?P<port>\d{1,5})")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})  #: Ray replaces them by the host's outer address


def expect_answer(address: str) -> None:
    """Raise ClusterUnreachable if nothing listens; an address that is not HOST:PORT is left to Ray."""
    match = HOST_AND_PORT.fullmatch(address)
    if not match:
        return
    host, port = match["host"].strip("[]"), int(match["port"])
    reason = "nothing answers"
    for name in (host, socket.gethostname()) if host in LOOPBACK else (host,):
        try:
            socket.create_connection((name, port), CONNECT_TIMEOUT_S).close()
            return
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    raise ClusterUnreachable(f"Ray at {address}", f"{reason}; check HALOCTL_RAY_ADDRESS, and that its head is up")
