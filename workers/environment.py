"""What stages run under: the toolchain found here, real paths of its tools, and a clean environment."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import workers
from jobs import models
from jobs.targets import TARGETS
from jobs.task import Command, Device, Gang
from jobs.toolchains import DEFAULT, PACKAGES, Toolchain

COMPILER = "iree-compile"
COMPILER_PACKAGE = "iree-base-compiler"
COMPILER_TIMEOUT_S = 60
FLAG = re.compile(r"^\s+(--[a-zA-Z0-9][\w-]*)", re.MULTILINE)

#: What stage processes see of the agent's environment: names, and beginnings of names.
PASSED_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "SSL_CERT_FILE"}
    | {"REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
)
PASSED_BEGINNINGS = (
    *("LC_", "HF_", "TRANSFORMERS_", "TORCH", "TRITON_", "IREE_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "MALLOC_"),
    *("ROCM_", "HIP_", "HSA_", "AMD_", "MIOPEN_", "CUDA_", "NVIDIA_", "NCCL_", "RCCL_", "GLOO_", "VLLM_"),
)
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY", re.IGNORECASE)
CREDENTIALS_IN_URL = re.compile(r"://[^/\s]*@")

#: Every variable that narrows what a runtime sees of a node's devices: set for an attempt or not at all.
MASKS = frozenset(
    {"ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}
    | {variable for target in TARGETS.values() for variable in target.visible_devices}
)
NO_DEVICE = "-1"  #: an empty value means "all of them" to some runtimes

#: The same for all attempts. PYTHONSAFEPATH: an attempt's folder is no place to import from.
FIXED = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "TOKENIZERS_PARALLELISM": "false"}


class MissingTool(Exception):
    """A command's tool is not installed here."""

    def __init__(self, tool: str, toolchain: Toolchain | None = None) -> None:
        super().__init__(tool, toolchain)
        self.tool, self.toolchain = tool, toolchain

    def __str__(self) -> str:
        if self.toolchain and self.toolchain.tools:
            name, where = self.toolchain.name, " nor in ".join(self.toolchain.tools)
            return f"toolchain {name} has no {self.tool}, which is not in {where}: none of its packages brings it"
        return f"{self.tool} is neither beside {sys.executable} nor on PATH: install the toolchain's packages here"


def probe_toolchain(cache: Path, name: str = DEFAULT) -> Toolchain:
    """Find out what is installed beside this interpreter; `cache` keeps what the compiler said of itself."""
    versions = dict(_versions(PACKAGES))
    return Toolchain(
        name=name,
        versions=versions,
        host_cpu=host_cpu(),
        programs=digest_of_programs(),
        compiler_flags=_compiler_flags(cache, versions.get(COMPILER_PACKAGE, "")),
    )


class Resolved(NamedTuple):
    """A command as the kernel is given it."""

    argv: tuple[str, ...]
    env: dict[str, str]


def resolve(command: Command, seen: Mapping[str, str] | None = None, toolchain: Toolchain | None = None) -> Resolved:
    """The command with its tool's real path and the environment that it sees, or a clean one; raises MissingTool."""
    tool = tool_path(command.argv[0], toolchain.tools if toolchain else ())
    if tool is None:
        raise MissingTool(command.argv[0], toolchain)
    return Resolved((tool, *command.argv[1:]), {**(environment() if seen is None else seen), **command.env})


def tool_path(name: str, folders: Sequence[str] = ()) -> str | None:
    """Where a tool of a toolchain is: in one of its folders, and there alone.

    Without folders it is what haloctl is installed in: `python` is this interpreter, others lie beside it or on PATH.
    """
    if folders:
        return shutil.which(name, path=os.pathsep.join(folders))
    if name == "python":
        return sys.executable
    beside = str(Path(sys.executable).with_name(name))
    return beside if os.access(beside, os.X_OK) else shutil.which(name)


def environment(
    devices: Iterable[Device] = (),
    cpus: int | None = None,
    inherited: Mapping[str, str] = os.environ,
    tools: Sequence[str] = (),
) -> dict[str, str]:
    """What an attempt's processes get to see: no secrets, and no devices but its own; a thread for each of `cpus`.

    The tools of its toolchain go before others on PATH.
    """
    passed = {name: value for name, value in inherited.items() if is_passed(name, value)}
    if tools:
        passed["PATH"] = os.pathsep.join([*tools, passed.get("PATH", os.defpath)])
    threads = {} if cpus is None else {"OMP_NUM_THREADS": str(cpus)}
    held = tuple(devices)
    told = {name: value for device in held for name, value in TARGETS[device.kind].variables.items()}
    return {**passed, **FIXED, **threads, **_import_path(), **told, **visible_devices(held)}


def gang_variables(gang: Gang | None) -> dict[str, str]:
    """What a node of several is told of the others, in torchrun's own variables; argv is the same on all of them."""
    if gang is None:
        return {}
    return {
        "PET_NNODES": str(gang.size),
        "PET_NODE_RANK": str(gang.rank),
        "PET_MASTER_ADDR": gang.master_address,
        "PET_MASTER_PORT": str(gang.master_port),
    }


def is_passed(name: str, value: str) -> bool:
    """Whether stage processes may see a variable of the agent's."""
    is_known = name in PASSED_NAMES or name.startswith(PASSED_BEGINNINGS)
    return is_known and name not in MASKS and not SECRET.search(name) and not CREDENTIALS_IN_URL.search(value)


def visible_devices(devices: tuple[Device, ...]) -> dict[str, str]:
    """The masks of an attempt. With GPUs only their own is set: HIP reads CUDA_VISIBLE_DEVICES too."""
    own = {variable for device in devices for variable in TARGETS[device.kind].visible_devices}
    if own:
        return dict.fromkeys(sorted(own), ",".join(str(device.index) for device in devices))
    return {variable: NO_DEVICE for target in TARGETS.values() for variable in target.visible_devices}


def host_cpu() -> str:
    """This machine's processor: its name, and a digest of the instructions it has."""
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
        name = facts.get("model name") or facts.get("CPU part", "")
        features = " ".join(sorted((facts.get("flags") or facts.get("Features", "")).split()))
        return f"{platform.machine()} {name} {hashlib.sha256(features.encode()).hexdigest()[:8]}"
    return platform.machine()


def _versions(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            yield package, metadata.version(package)


def digest_of_programs() -> str:
    """Of the source of all that stage programs import of ours."""
    sources = [*sorted((packages_root() / "workers" / "llm").rglob("*.py")), Path(models.__file__)]
    whole = hashlib.sha256()
    for source in sources:
        whole.update(f"{source.name}\0{hashlib.sha256(source.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def packages_root() -> Path:
    """The folder that haloctl's packages lie in."""
    return Path(workers.__file__).absolute().parent.parent


@cache
def _import_path() -> dict[str, str]:
    """PYTHONPATH for a checkout that is not installed; an installed package is found without."""
    root = str(packages_root())
    is_installed = root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return {} if is_installed else {"PYTHONPATH": root}


def _compiler_flags(cache: Path, version: str) -> frozenset[str]:
    """Names of the flags that the compiler knows, from the cache if this very compiler was asked before."""
    path = tool_path(COMPILER)
    if path is None:
        return frozenset()
    identity = f"{path}\0{version}\0{os.stat(path).st_mtime_ns}"
    kept = cache / f"compiler-flags-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError):
        return frozenset(json.loads(kept.read_text()))
    flags = flags_of(path)
    if flags:
        with suppress(OSError):  # without a cache it is only slower
            _write_whole(kept, json.dumps(sorted(flags)))
    return flags


def flags_of(compiler: str) -> frozenset[str]:
    """The names of the flags that a compiler says it knows."""
    return flags_in(_help_of(compiler))


def flags_in(text: str) -> frozenset[str]:
    """The names of all flags that a help text lists."""
    return frozenset(FLAG.findall(text))


def _help_of(path: str) -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            [path, "--help"], capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S, env=environment(), check=False
        ).stdout
    return ""


def _write_whole(file: Path, text: str) -> None:
    """Write a file so that readers and other writers never see a part of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{uuid4().hex}.part")
    try:
        part.write_text(text)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
