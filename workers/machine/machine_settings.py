"""The settings of a machine that timings depend on: what they are, what they should be, and how to change them.

HIP_FORCE_DEV_KERNARG, deterministic clocks and NUMA balancing are what AMD's guide to LLMs on MI300X asks for;
iommu=pt, transparent huge pages and the governor are from its system optimization guides
(https://rocm.docs.amd.com/en/latest/how-to/system-optimization/index.html), the rest is NVIDIA's counterpart.
"""

import glob
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.task import Check, Device
from workers.environment import stage_environment
from workers.machine import driver_tools
from workers.machine.driver_tools import ToolFailed
from workers.machine.gpu_listing import Gpu, GpuListing, target_of_gpu

#: The cap that AMD's guide puts on an MI300X, instead of 2100 MHz; an MI325X has the same clocks.
DETERMINISTIC_MHZ = {"mi300x": 1900, "mi325x": 1900}
NVIDIA_SHARE = 0.9  #: of the highest clock: about what 1900 of 2100 MHz is
NVIDIA_STEP_MHZ = 15  #: between the clocks that NVIDIA's chips can be set to
IOMMU_OFF = frozenset({"iommu=pt", "iommu=off", "amd_iommu=off", "intel_iommu=off", "iommu.passthrough=1"})


@dataclass(frozen=True)
class Machine:
    """The machine whose settings are read: its GPUs and its file system."""

    listings: tuple[GpuListing, ...] = ()
    root: Path = Path("/")

    def read(self, path: str) -> list[str]:
        """Return the contents of the readable files that a pattern matches."""
        return [text for file in self.files(path) if (text := _read_text(file))]

    def files(self, path: str) -> list[Path]:
        """Return the files that an absolute pattern matches."""
        return [Path(match) for match in sorted(glob.glob(f"{self.root}{path}"))]

    def gpus(self, vendor: str) -> list[Gpu]:
        """Return a vendor's GPUs."""
        return [gpu for listing in self.listings if listing.vendor == vendor for gpu in listing.gpus]

    def gpu_setting(self, vendor: str, setting: str) -> str:
        """Return the values that a setting has on a vendor's GPUs, each once; empty where none reports it."""
        return ", ".join(sorted({gpu.settings[setting] for gpu in self.gpus(vendor) if setting in gpu.settings}))


@dataclass(frozen=True)
class WriteFile:
    """A fix that writes a text to all files that a pattern matches."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"echo {self.text} | sudo tee {self.path}"


@dataclass(frozen=True)
class RunTool:
    """A fix that runs a tool."""

    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"sudo {shlex.join(self.argv)}"


Fix = WriteFile | RunTool


@dataclass(frozen=True)
class MachineSetting:
    """One setting: how to read it, what it should be, and how to change it."""

    name: str
    read: Callable[[Machine], str]  #: returns an empty text where the setting does not apply
    wanted: str
    advice: str
    accepted: tuple[str, ...] = ()  #: other values that are as good
    fixes: Callable[[Machine], Sequence[Fix]] = lambda machine: ()

    def check(self, machine: Machine) -> Check | None:
        """Return what the setting is on a machine; None where it does not apply."""
        value = self.read(machine)
        if not value:
            return None
        is_ok = value in (self.wanted, *self.accepted)
        return Check(self.name, value, self.wanted, is_ok, "" if is_ok else self.advice)


def _huge_pages(machine: Machine) -> str:
    """Return the word in brackets of `always [madvise] never`."""
    text = "".join(machine.read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return text.partition("[")[2].partition("]")[0]


def _iommu(machine: Machine) -> str:
    if not machine.gpus("amd") or not machine.files("/sys/class/iommu/*"):
        return ""
    parameters = "".join(machine.read("/proc/cmdline")).split()
    types = sorted(set(machine.read("/sys/kernel/iommu_groups/*/type")))
    return next((word for word in parameters if word in IOMMU_OFF), ", ".join(types) or "translates")


def _dev_kernarg(machine: Machine) -> str:
    kinds = {kind for gpu in machine.gpus("amd") if (kind := target_of_gpu(gpu.name))}
    return ", ".join(
        sorted({stage_environment((Device(kind, 0),)).get("HIP_FORCE_DEV_KERNARG", "not set") for kind in kinds})
    )


def _deterministic_clocks(machine: Machine) -> list[RunTool]:
    """Return no fix where the guide does not name the chip's clock."""
    caps = {DETERMINISTIC_MHZ.get(target_of_gpu(gpu.name) or "") for gpu in machine.gpus("amd")}
    tool = driver_tools.find_tool("rocm-smi") or "rocm-smi"
    return [RunTool((tool, "--setperfdeterminism", str(mhz))) for mhz in caps if len(caps) == 1 and mhz]


def _nvidia_clocks(machine: Machine) -> str:
    """Return whether all run below their highest clock; drivers from release 580 on do not report it."""
    names = ("clocks.applications.graphics", "clocks.max.graphics")
    clocks = [tuple(_mhz(gpu.settings.get(name)) for name in names) for gpu in machine.gpus("nvidia")]
    known = [(current, highest) for current, highest in clocks if current and highest]
    return "" if not known else "capped" if all(current < highest for current, highest in known) else "highest"


def _capped_nvidia_clocks(machine: Machine) -> list[RunTool]:
    tool = driver_tools.find_tool("nvidia-smi") or "nvidia-smi"
    runs = []
    for gpu in machine.gpus("nvidia"):
        memory, highest = (_mhz(gpu.settings.get(f"clocks.max.{name}")) for name in ("memory", "graphics"))
        if memory and highest:
            capped = int(highest * NVIDIA_SHARE) // NVIDIA_STEP_MHZ * NVIDIA_STEP_MHZ
            runs.append(RunTool((tool, "-i", str(gpu.index), "-ac", f"{memory},{capped}")))
    return runs


def _mhz(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


SETTINGS = (
    MachineSetting(
        "numa_balancing",
        lambda machine: "".join(machine.read("/proc/sys/kernel/numa_balancing")),
        wanted="0",
        advice="turn automatic NUMA balancing off: moving pages stops the processes that use them",
        fixes=lambda machine: [WriteFile("/proc/sys/kernel/numa_balancing", "0")],
    ),
    MachineSetting(
        "transparent_huge_pages",
        _huge_pages,
        wanted="madvise",
        accepted=("always",),
        advice="allow programs to use huge pages",
        fixes=lambda machine: [WriteFile("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")],
    ),
    MachineSetting(
        "cpu_governor",
        lambda machine: ", ".join(sorted(set(machine.read("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")))),
        wanted="performance",
        advice="keep the processors at their highest clock",
        fixes=lambda machine: [WriteFile("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "performance")],
    ),
    MachineSetting(
        "iommu",
        _iommu,
        wanted="iommu=pt",
        accepted=(*IOMMU_OFF, "identity"),
        advice="add iommu=pt to the kernel's command line and reboot: GPUs then reach memory directly",
    ),
    MachineSetting(
        "hip_force_dev_kernarg",
        _dev_kernarg,
        wanted="1",
        advice="haloctl sets it for every attempt on an AMD GPU",
    ),
    MachineSetting(
        "amd_clocks",
        lambda machine: machine.gpu_setting("amd", "performance_level"),
        wanted="perf_determinism",
        advice="cap the clock below its highest, so that heat does not change it: rocm-smi --setperfdeterminism MHZ",
        fixes=_deterministic_clocks,
    ),
    MachineSetting(
        "nvidia_persistence",
        lambda machine: machine.gpu_setting("nvidia", "persistence_mode"),
        wanted="Enabled",
        advice="keep the driver loaded between programs",
        fixes=lambda machine: [RunTool((driver_tools.find_tool("nvidia-smi") or "nvidia-smi", "-pm", "1"))],
    ),
    MachineSetting(
        "nvidia_clocks",
        _nvidia_clocks,
        wanted="capped",
        advice="cap the clock below its highest, so that heat does not change it: nvidia-smi -ac MEMORY,GRAPHICS",
        fixes=_capped_nvidia_clocks,
    ),
)


def checks(machine: Machine) -> tuple[Check, ...]:
    """Check all that applies to a machine: first whether its drivers' tools answer, then its settings."""
    return (*map(_tool_check, machine.listings), *filter(None, (setting.check(machine) for setting in SETTINGS)))


def _tool_check(listing: GpuListing) -> Check:
    advice = f"run {listing.tool} on the machine: its GPUs are not used until it answers"
    return Check(
        f"{listing.vendor}_tool",
        listing.error or f"{listing.tool} lists {len(listing.gpus)}",
        "an answer",
        not listing.error,
        advice if listing.error else "",
    )


@dataclass(frozen=True)
class SettingChange:
    """A fix that was applied to a setting, or why it could not be."""

    setting: str
    fix: Fix
    error: str = ""  #: empty if it was applied


def apply_fixes(machine: Machine) -> Iterator[SettingChange]:
    """Apply the fixes of every setting that is not as wanted, as the caller iterates."""
    for setting in SETTINGS:
        check = setting.check(machine)
        if check and not check.is_ok:
            for fix in setting.fixes(machine):
                yield SettingChange(setting.name, fix, _apply(fix, machine))


def _apply(fix: Fix, machine: Machine) -> str:
    """Apply one fix; returns why it failed, empty if it did not."""
    if isinstance(fix, WriteFile):
        return "; ".join(filter(None, (_write(file, fix.text) for file in machine.files(fix.path))))
    if os.geteuid():
        return "only root is allowed to"
    try:
        driver_tools.run_tool(Path(fix.argv[0]).name, fix.argv)
    except ToolFailed as error:
        return str(error)
    return ""


def _write(file: Path, text: str) -> str:
    try:
        file.write_text(text)
    except OSError as error:
        return f"{file}: {error.strerror}"
    return ""


def _read_text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
