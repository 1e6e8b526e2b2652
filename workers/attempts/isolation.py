"""What an attempt's processes may write to, what they may not read, and the user that they run as."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.task import Device
from workers.processes.stage_user import StageUser

SITE_FOLDERS = "HALOCTL_STAGE_WRITABLE"  #: further folders, separated by colons

#: Devices, and what stands for them; those that begin with the last ones are theirs too.
DEVICES = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts"),
    *("/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/infiniband"),
    *("/dev/kfd", "/dev/dri", "/dev/accel"),
)
DEVICE_PREFIX = "nvidia"
OWN_PROCESS = "/proc/self"

#: Variables that name folders of caches.
CACHE_VARIABLES = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ASSETS_CACHE", "HF_XET_CACHE"),
    *("HF_MODULES_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME", "TORCH_EXTENSIONS_DIR"),
    *("TORCHINDUCTOR_CACHE_DIR", "PYTORCH_KERNEL_CACHE_PATH", "TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR"),
    *("VLLM_CACHE_ROOT", "VLLM_ASSETS_CACHE", "MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_USER_DB_PATH", "AITER_JIT_DIR"),
    *("AMD_COMGR_CACHE_DIR", "CUDA_CACHE_PATH"),
)
#: Folders below HOME that programs keep caches in, wherever these variables point: the hub, torch, MIOpen, vLLM, ...
CACHES = (".cache",)
#: What programs for GPUs keep besides.
GPU_CACHES = (".triton", ".config/miopen", ".miopen", ".config/vllm", ".aiter", ".nv")
SHARED_TEMPORARY = "/tmp/aiter_configs"  #: AITER writes there whatever TMPDIR is


#: What a node has for itself: the token that lets run code on the head, and Ray's own files.
SECRETS_IN_DATA = ("ray-token", "ray")
SECRETS_IN_HOME = (
    *(".netrc", ".pgpass", ".git-credentials", ".pypirc", ".ssh", ".gnupg", ".aws", ".azure", ".docker", ".kube"),
    *(".config/gcloud", ".config/gh", ".config/rclone"),
)
#: The agent's variables that name files with secrets.
SECRET_FILE_VARIABLES = (
    *("HALOCTL_DATABASE_URL_FILE", "HALOCTL_RAY_TOKEN_FILE", "RAY_AUTH_TOKEN_PATH", "RAY_TLS_SERVER_KEY", "PGPASSFILE"),
    *("PGSSLKEY", "NETRC", "AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS"),
)


@dataclass(frozen=True)
class Isolation:
    """How the processes of an attempt are set apart from others of this machine."""

    user: StageUser | None
    writable: tuple[str, ...]  #: folders and files; those that are missing are left out
    secret: tuple[str, ...]  #: files and folders that are not read

    def to_request(self) -> dict[str, Any]:
        """Return what a supervisor needs to know."""
        user = self.user and [self.user.uid, self.user.gid, list(self.user.groups)]
        return {"user": user, "writable": list(self.writable), "secret": list(self.secret)}


def isolation_of(
    data: Path, folder: Path, environment: Mapping[str, str], devices: Sequence[Device], user: StageUser | None
) -> Isolation:
    """Return the isolation of an attempt that runs in `folder`; folders of caches are made if they are missing."""
    has_gpu = any(device.kind != "cpu" for device in devices)
    named = [environment[name] for name in CACHE_VARIABLES if environment.get(name)]
    home = environment.get("HOME", "")
    caches = [home] if user else [*_made(home, has_gpu=has_gpu)]
    site = [part for part in os.environ.get(SITE_FOLDERS, "").split(":") if part]
    secret = () if user else tuple(_secrets(data, home))  # another user is refused by their modes
    return Isolation(user, (str(folder), *_devices(), OWN_PROCESS, *named, *caches, *site), secret)


def _secrets(data: Path, home: str) -> Iterator[str]:
    yield from (str(data.absolute() / name) for name in SECRETS_IN_DATA)
    yield from (os.path.join(home, name) for name in SECRETS_IN_HOME if home)
    yield from (os.path.abspath(path) for name in SECRET_FILE_VARIABLES if (path := os.environ.get(name)))


def _devices() -> Iterator[str]:
    yield from DEVICES
    with suppress(OSError):
        yield from (f"/dev/{name}" for name in os.listdir("/dev") if name.startswith(DEVICE_PREFIX))


def _made(home: str, *, has_gpu: bool) -> Iterator[str]:
    """Yield the folders of caches below a home folder: a program could not make them itself."""
    for name in (*CACHES, *GPU_CACHES) if has_gpu else CACHES:
        if home:
            with suppress(OSError):
                os.makedirs(os.path.join(home, name), mode=0o700, exist_ok=True)
            yield os.path.join(home, name)
    if has_gpu:
        with suppress(OSError):
            os.mkdir(SHARED_TEMPORARY)
            os.chmod(SHARED_TEMPORARY, 0o1777)  # as /tmp is: others of this machine use it too
        yield SHARED_TEMPORARY
