"""A port that was free stays so until somebody listens at it: nobody gets it who asks for any."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from workers.agent import ports

HOST = "127.0.0.1"


def first_ephemeral_port() -> int:
    return int(ports.EPHEMERAL_PORTS.read_text().split()[0])


@pytest.mark.skipif(first_ephemeral_port() <= ports.FIRST_PORT, reason="the kernel gives all ports away here")
def test_a_port_is_none_that_the_kernel_gives_away() -> None:
    assert ports.FIRST_PORT <= ports.free_port(HOST) < first_ephemeral_port()


def test_a_port_at_which_somebody_listens_is_not_free(tmp_path: Path) -> None:
    few = tmp_path / "given-away"
    few.write_text(f"{ports.FIRST_PORT + 3} 60999\n")
    with ExitStack() as listeners:
        free_ports = []
        for _ in range(5):
            free_ports.append(port := ports.free_port(HOST, few))
            listeners.enter_context(socket.create_server((HOST, port)))
    assert len(set(free_ports)) == 5
    assert sum(port < ports.FIRST_PORT + 3 for port in free_ports) <= 3, "there are no more of them"


def test_where_the_kernel_gives_all_of_them_away_one_of_those_is_taken(tmp_path: Path) -> None:
    everything = tmp_path / "given-away"
    everything.write_text("1024\t65535\n")
    with socket.create_server((HOST, ports.free_port(HOST, everything))) as listener:
        assert listener.getsockname()[1] >= 1024
