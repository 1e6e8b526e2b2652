"""Finding the network interface through which this machine reaches another one."""

import fcntl
import socket
import struct
from contextlib import suppress

SIOCGIFADDR = 0x8915  #: netdevice(7): returns the IPv4 address of a named interface
NAME_BYTES, ADDRESS = 256, slice(20, 24)  #: of the interface's name in its request, of the address in its response


def interface_towards(address: str) -> str | None:
    """Return the name of the interface that packets to `address` leave through, or None when no interface does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((address, 9))  # sends nothing
        source = probe.getsockname()[0]
        return next((name for _, name in socket.if_nameindex() if _address(probe, name) == source), None)
    return None


def _address(probe: socket.socket, name: str) -> str | None:
    with suppress(OSError):  # an interface without an IPv4 address
        response = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack(f"{NAME_BYTES}s", name.encode()))
        return socket.inet_ntoa(response[ADDRESS])
    return None
