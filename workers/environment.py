"""What stage processes run with: the real paths of their tools, and an environment without secrets."""

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import workers
from jobs.environment_variables import VARIABLES, Effect
from jobs.masking import has_userinfo
from jobs.targets import TARGETS
from jobs.task import Command, Device, Gang
from jobs.toolchains import Toolchain

SITE_VARIABLES = (
    "HALOCTL_STAGE_VARIABLES"  #: exact names that a site adds to `VARIABLES`, separated by commas or blanks
)

SERVE_KEY = "HALOCTL_SERVE_KEY"

#: Names that are never passed, even if a site adds them: values are stored with results.
SECRET = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|(ACCESS|PRIVATE)_KEY|_PAT$|_AUTH$|^HALOCTL_SERVE_KEY$",
    re.IGNORECASE,
)

#: Every variable that limits a runtime to some of a node's devices: set by haloctl for an attempt, or not at all.
MASKS = frozenset(
    {"ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}
    | {variable for target in TARGETS.values() for variable in target.visible_devices}
)
NO_DEVICE = "-1"  #: an empty value means "all of them" to some runtimes

#: For all attempts. PYTHONSAFEPATH: nothing is imported from an attempt's folder.
FIXED = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "TOKENIZERS_PARALLELISM": "false"}


class MissingTool(Exception):
    """A command's tool is not installed on this machine."""

    def __init__(self, tool: str, toolchain: Toolchain | None = None) -> None:
        super().__init__(tool, toolchain)
        self.tool, self.toolchain = tool, toolchain

    def __str__(self) -> str:
        if self.toolchain and self.toolchain.tools:
            folders = " nor in ".join(self.toolchain.tools)
            return (
                f"toolchain {self.toolchain.name} has no {self.tool}: it is not in {folders}; "
                "add the package that brings it to the toolchain"
            )
        return f"{self.tool} is neither beside {sys.executable} nor on PATH: install the toolchain's packages here"


class ResolvedCommand(NamedTuple):
    """A command with the real path of its tool and a whole environment."""

    argv: tuple[str, ...]
    env: dict[str, str]


def resolve_command(
    command: Command, environment: Mapping[str, str] | None = None, toolchain: Toolchain | None = None
) -> ResolvedCommand:
    """Return the command with its tool's real path and its environment, by default a clean one; raises MissingTool."""
    tool = find_tool(command.argv[0], toolchain.tools if toolchain else ())
    if tool is None:
        raise MissingTool(command.argv[0], toolchain)
    base = stage_environment() if environment is None else environment
    return ResolvedCommand((tool, *command.argv[1:]), {**base, **command.env})


def find_tool(name: str, folders: Sequence[str] = ()) -> str | None:
    """Return the path of a tool in one of a toolchain's folders, and nowhere else.

    Without folders it is looked up where haloctl is installed: `python` is this interpreter, others lie beside it or on
    PATH.
    """
    if folders:
        return shutil.which(name, path=os.pathsep.join(folders))
    if name == "python":
        return sys.executable
    beside = str(Path(sys.executable).with_name(name))
    return beside if os.access(beside, os.X_OK) else shutil.which(name)


def stage_environment(
    devices: Iterable[Device] = (),
    cpus: int | None = None,
    inherited: Mapping[str, str] = os.environ,
    tools: Sequence[str] = (),
) -> dict[str, str]:
    """Return the environment of an attempt's processes: no secrets, no devices but its own, a thread for each CPU.

    The tools of its toolchain go before others on PATH.
    """
    passed = passed_variables(inherited)
    if tools:
        passed["PATH"] = os.pathsep.join([*tools, passed.get("PATH", os.defpath)])
    threads = {} if cpus is None else {"OMP_NUM_THREADS": str(cpus)}
    devices = tuple(devices)
    for_targets = {name: value for device in devices for name, value in TARGETS[device.kind].variables.items()}
    return {**passed, **FIXED, **threads, **_import_path(), **for_targets, **visible_devices(devices)}


def service_secrets(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the key that requests to a server must bring, if the node has one: for its process alone."""
    return {SERVE_KEY: inherited[SERVE_KEY]} if SERVE_KEY in inherited else {}


def gang_variables(gang: Gang | None) -> dict[str, str]:
    """Return torchrun's own variables that tell one node of a gang about the others; argv is the same on all nodes."""
    if gang is None:
        return {}
    return {
        "PET_NNODES": str(gang.size),
        "PET_NODE_RANK": str(gang.rank),
        "PET_MASTER_ADDR": gang.master_address,
        "PET_MASTER_PORT": str(gang.master_port),
    }


def passed_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that stage processes see: those of the table, and those that the site adds."""
    site = site_variables(inherited)
    return {name: value for name, value in inherited.items() if is_passed(name, value, site)}


def held_back_variables(inherited: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables of this process that stages do not see although they would change results."""
    passed = passed_variables(inherited)
    return sorted(
        name
        for name in inherited.keys() - passed.keys() - MASKS
        if name in VARIABLES and VARIABLES[name].effect is Effect.RESULT
    )


def held_back_warning() -> str | None:
    """Return what people should know of these variables; None if there are none."""
    if not (names := held_back_variables()):
        return None
    return (
        f"stages do not see {', '.join(names)}, which would change results: set them with `env` in job files, or "
        f"add their names to {SITE_VARIABLES}"
    )


def site_variables(inherited: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the names of the variables that the site adds to the table."""
    return frozenset(re.split(r"[,\s]+", inherited.get(SITE_VARIABLES, ""))) - {""}


def is_passed(name: str, value: str, site: Collection[str] = ()) -> bool:
    """Whether stage processes may see a variable of the agent's; `site` are names beside those of the table.

    What changes results comes from job files alone, or is the site's wish: else the same task would compute something
    else on another node. Paths of tools and libraries are an exception, since nodes have their own.
    """
    is_known = name in site and not SECRET.search(name)
    if row := VARIABLES.get(name):
        is_known |= row.names_file or row.effect is not Effect.RESULT
    return is_known and name not in MASKS and not _has_credentials(name, value)


def _has_credentials(name: str, value: str) -> bool:
    """Whether a value holds a user name or password; in a proxy's address anything in front of `@` is one."""
    return has_userinfo(value) or ("@" in value and name.lower().endswith("_proxy"))


def visible_devices(devices: tuple[Device, ...]) -> dict[str, str]:
    """Return the device masks of an attempt. With GPUs only their own is set: HIP reads CUDA_VISIBLE_DEVICES too."""
    masks = {variable for device in devices for variable in TARGETS[device.kind].visible_devices}
    if masks:
        return dict.fromkeys(sorted(masks), ",".join(str(device.index) for device in devices))
    return {variable: NO_DEVICE for target in TARGETS.values() for variable in target.visible_devices}


def packages_root() -> Path:
    """Return the folder that contains haloctl's packages."""
    return Path(workers.__file__).absolute().parent.parent


@cache
def _import_path() -> dict[str, str]:
    """Return PYTHONPATH for a checkout that is not installed; an installed package needs none."""
    root = str(packages_root())
    is_installed = root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return {} if is_installed else {"PYTHONPATH": root}
