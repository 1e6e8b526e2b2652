"""The argument lists and environments of Ray's processes. Pure: nothing is started here."""

import json
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from jobs.task import Node
from orchestrator.ray_cluster.reaper import VARIABLE
from workers.machine.device_masks import merge_amd_masks

PROGRAM = (sys.executable, "-m", "orchestrator.ray_cluster.ray_program")
NODE_LABEL = "haloctl-node"  #: a raylet's label with the name of its node
CPU_DEVICE = "cpu_device"  #: Ray's name for our logical CPU devices
OBJECT_STORE_BYTES = 80 << 20  #: files never travel through it

#: A raylet that is gone is noticed after 4 x 0.5 s, one that is cut off or stopped after 4 x 3.5 s; others of Ray's
#: connections find out within 15 s. A control store that is away may come back any time; one that has forgotten a
#: raylet is noticed by it within a second, which then ends.
TUNING = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_grpc_client_keepalive_time_ms": "10000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(30 * 24 * 3600),
    "RAY_raylet_liveness_self_check_interval_ms": "1000",
}

#: Environment of every process that starts or joins a Ray.
FIXED = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",  # no Ray tasks are run
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray must not change the GPU masks
    **TUNING,
}

#: Environment of a driver that connects to 127.0.0.1: otherwise Ray 2.60 on Linux takes the host's outer address.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

#: Prefixes of variables that Ray's processes don't inherit: not every process of a cluster may use the database.
LEFT_OUT = ("HALOCTL_DATABASE_URL", "PG", "RAY_AUTH_")

COMMON = (
    "--disable-usage-stats",
    "--include-log-monitor=false",
    "--min-worker-port=0",  # any free one, so that several raylets of a host don't meet
    "--max-worker-port=0",
    "--dashboard-agent-listen-port=0",
    f"--object-store-memory={OBJECT_STORE_BYTES}",
)


def head_command(host: str, port: int, folder: Path) -> tuple[str, ...]:
    """Return the command that starts the control store, and a raylet without resources for the head to connect to."""
    head = ("--head", f"--port={port}", "--num-cpus=0", "--num-gpus=0", "--include-dashboard=false", "--no-monitor")
    return (*PROGRAM, "start", *head, f"--node-ip-address={host}", f"--temp-dir={folder}", *COMMON)


def node_command(head: str, address: str, node: Node, folder: Path) -> tuple[str, ...]:
    """Return the command that starts a raylet with all the resources of a node."""
    cpu_devices = node.count("cpu")
    where = (f"--address={head}", f"--node-ip-address={address}", f"--temp-dir={folder}")
    has = (
        f"--num-cpus={node.cpus}",
        f"--num-gpus={len(node.devices) - cpu_devices}",
        f"--resources={json.dumps({CPU_DEVICE: cpu_devices})}",
        f"--labels={NODE_LABEL}={node.id}",
    )
    return (*PROGRAM, "start", *where, *has, *COMMON)


def environment(folder: Path, token: Mapping[str, str], inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of Ray's processes, which are found again by `folder`."""
    passed = {name: value for name, value in inherited.items() if not name.startswith(LEFT_OUT)}
    merge_amd_masks(passed)
    return {**passed, **FIXED, **_import_path(inherited), **token, VARIABLE: str(folder)}


def persistent_state(folder: Path) -> dict[str, str]:
    """Return the variables by which the control store persists nodes, actors and groups, and can be restarted."""
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder)}


def _import_path(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return PYTHONPATH for a checkout that is not installed."""
    root = str(Path(__file__).absolute().parents[2])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    given = [part for part in inherited.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys((root, *given)))}
