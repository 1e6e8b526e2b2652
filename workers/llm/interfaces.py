"""The network interface through which this machine reaches another one."""

import fcntl
import socket
import struct
from contextlib import suppress

SIOCGIFADDR = 0x8915  #: netdevice(7): the IPv4 address of the interface that a name is given of
NAME_BYTES, ADDRESS = 256, slice(20, 24)  #: in its request and answer


def interface_towards(address: str) -> str | None:
    """The name of the interface whose own address a packet to `address` leaves with; None where there is no such."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
        return next((name for _, name in socket.if_nameindex() if _address(probe, name) == own), None)
    return None


def _address(probe: socket.socket, name: str) -> str | None:
    with suppress(OSError):  # an interface without an IPv4 address
        found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack(f"{NAME_BYTES}s", name.encode()))
        return socket.inet_ntoa(found[ADDRESS])
    return None
