"""What Ray's processes are started with: argument lists and environments. Nothing is started here."""

import hashlib
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jobs.errors import StorageUnusable
from jobs.task import Node
from orchestrator.cluster.reaper import VARIABLE
from workers.device_masks import use_one_mask

PROGRAM = (sys.executable, "-m", "orchestrator.cluster.ray_program")
NODE_LABEL = "haloctl-node"  #: on a raylet: the name of its node
CPU_DEVICE = "cpu_device"  #: Ray's name for our logical CPU devices
OBJECT_STORE_BYTES = 80 << 20  #: files never travel through it
LONGEST_FOLDER = 40  #: Ray's sockets are up to 67 characters below it, and Linux takes 107

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

#: For every process that starts or joins a Ray.
FIXED = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",  # tasks of Ray's own there are none
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # keep Ray's hands off the GPU masks
    **TUNING,
}

#: For a driver that connects to 127.0.0.1: without it Ray 2.60 on Linux turns that into the host's outer address.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

#: Of the environment of whoever starts Ray. How to get into the database is not for every process of a cluster.
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
    """Start the control store and a raylet on which nothing runs, for the head to be a driver of."""
    own = ("--head", f"--port={port}", "--num-cpus=0", "--num-gpus=0", "--include-dashboard=false", "--no-monitor")
    return (*PROGRAM, "start", *own, f"--node-ip-address={host}", f"--temp-dir={folder}", *COMMON)


def node_command(head: str, address: str, node: Node, folder: Path) -> tuple[str, ...]:
    """Start a raylet with all that a node has."""
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
    """Of a Ray's processes; by `folder` they are found again."""
    passed = {name: value for name, value in inherited.items() if not name.startswith(LEFT_OUT)}
    use_one_mask(passed)
    return {**passed, **FIXED, **_import_path(inherited), **token, VARIABLE: str(folder)}


def keeps_state_in(folder: Path) -> dict[str, str]:
    """Has the control store remember nodes, actors and groups, so that it may be started again."""
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder)}


def short_folder(data: Path, name: str) -> Path:
    """Where one of Ray's temporary folders lies: below the data folder if its path is short enough for sockets.

    It is the same each time, and this user's alone. Raises StorageUnusable where it can't be.
    """
    folder = data / "ray" / name
    if len(str(folder)) > LONGEST_FOLDER:
        digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
        folder = Path(tempfile.gettempdir()) / f"haloctl-{os.getuid()}-{digest}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.lstat().st_uid
    except OSError as error:
        raise StorageUnusable(f"folder {folder}", f"{error.strerror}; Ray needs it for its sockets") from error
    if owner != os.getuid() or folder.is_symlink():
        raise StorageUnusable(f"folder {folder}", "it belongs to somebody else; set TMPDIR to a folder of your own")
    return folder


def _import_path(inherited: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH, for a checkout that is not installed."""
    root = str(Path(__file__).absolute().parents[2])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    given = [part for part in inherited.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys((root, *given)))}
