"""Whether anybody answers at a Ray cluster's address. Ray itself would ask for minutes."""

import re
import socket

from jobs.errors import ClusterUnreachable

CONNECT_TIMEOUT_S = 5.0
HOST_AND_PORT = re.compile(r"(?P<host>[^/]+):(?P<port>\d{1,5})")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})  #: which Ray takes for the host's outer address


def expect_answer(address: str) -> None:
    """Raise ClusterUnreachable where nobody listens; an address that is not HOST:PORT is left to Ray."""
    found = HOST_AND_PORT.fullmatch(address)
    if not found:
        return
    host, port = found["host"].strip("[]"), int(found["port"])
    reason = "nobody answers"
    for name in (host, socket.gethostname()) if host in LOOPBACK else (host,):
        try:
            socket.create_connection((name, port), CONNECT_TIMEOUT_S).close()
            return
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    raise ClusterUnreachable(f"Ray at {address}", f"{reason}; check HALOCTL_RAY_ADDRESS, and that its head is up")
