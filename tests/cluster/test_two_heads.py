"""Heads on two hosts with TLS: one leads, and the other takes over on its own Ray when the first one's host is gone."""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import Cluster, running_cluster
from tests.cluster.hosts import CPU_DEVICES, LEADS, PORT, until_equal

MAKE_CERTIFICATES = Path(__file__).parents[2] / "infra" / "make-certificates.sh"
UNREACHABLE = 6


def with_tls(cluster: Cluster, name: str) -> None:
    """Give a host the variables of TLS, with a certificate of its own."""
    host, folder = cluster.hosts[name], cluster.folder / "certificates"
    folder.mkdir(exist_ok=True)
    subprocess.run([MAKE_CERTIFICATES, host.address], cwd=folder, check=True, capture_output=True)
    host.environment |= {
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": str(folder / "ca.crt"),
        "RAY_TLS_SERVER_CERT": str(folder / f"{host.address}.crt"),
        "RAY_TLS_SERVER_KEY": str(folder / f"{host.address}.key"),
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two heads with a node each; the second one stands by."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates need openssl, which is not on PATH")
    with running_cluster() as cluster:
        cluster.plug_with_database("second")
        for name in ("n1", "n2"):
            cluster.plug(name)
        for name in ("head", "second", "n1", "n2"):
            with_tls(cluster, name)
        cluster.start_head("head")
        cluster.start_node("n1", waits=False)
        second = cluster.hosts["second"]
        cluster.daemons["second"] = second.start("head", "--host", second.address, "--standby")
        cluster.daemons["n1"].until_says("has joined")
        cluster.daemons["second"].until_says("stands by")
        yield cluster


def handshake(cluster: Cluster, name: str) -> str | None:
    """Return the protocol that a head's control store speaks with a member."""
    folder, member = cluster.folder / "certificates", cluster.hosts["n1"]
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.check_hostname = False  # addresses are in it as such; the chain is checked
    context.load_cert_chain(folder / f"{member.address}.crt", folder / f"{member.address}.key")
    with (
        member.cable.entered(),
        socket.create_connection((cluster.hosts[name].address, PORT), 10) as plain,
        context.wrap_socket(plain) as encrypted,
    ):
        return encrypted.version()


def test_a_job_runs_with_tls_from_end_to_end(cluster: Cluster) -> None:
    assert (handshake(cluster, "head") or "").startswith("TLS")
    work = cluster.submit_work(CPU_DEVICES)
    work.until_running(CPU_DEVICES)
    work.open()
    assert cluster.attempts(work.job) == {("succeeded",): CPU_DEVICES}


def test_what_a_head_knows_is_in_no_environment(cluster: Cluster) -> None:
    head = psutil.Process(cluster.daemons["head"].process.pid)
    assert cluster.url not in head.environ().values()
    for process in cluster.hosts["n1"].processes():
        assert cluster.url not in process.environ().values()


def test_a_head_on_another_host_takes_over_with_its_own_nodes(cluster: Cluster) -> None:
    work = cluster.submit_work(CPU_DEVICES)
    work.until_running(CPU_DEVICES)
    head = cluster.hosts["head"]
    cluster.daemons["head"].process.kill()
    for process in head.processes():
        if process.pid != os.getpid() and "postgres" not in process.name():
            process.kill()  # its Ray too, as with the machine; the database stays
    second = cluster.daemons["second"]
    second.until_says(f"haloctl node --head {cluster.hosts['second'].address}:{PORT}")
    second.until_says(LEADS)
    cluster.start_node("n2", "second")
    until_equal(cluster.up, {"n2"})
    work.open()
    ended = cluster.attempts(work.job)
    assert sum(ended.values()) == CPU_DEVICES
    assert {outcomes[-1] for outcomes in ended} == {"succeeded"}
    assert all(len(outcomes) == 2 for outcomes in ended), "each ran on n1, was lost with its head, and ran on n2"
