"""The settings of a machine that timings depend on: how they are, how they should be, and how that is done.

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
from workers import driver_tools
from workers.driver_tools import ToolFailed
from workers.environment import environment
from workers.gpu_listing import Gpu, Listing, kind_of_gpu

#: The cap that AMD's guide puts on an MI300X, instead of 2100 MHz; an MI325X has the same clocks.
DETERMINISTIC_MHZ = {"mi300x": 1900, "mi325x": 1900}
NVIDIA_SHARE = 0.9  #: of the highest clock: about what 1900 of 2100 MHz is
NVIDIA_STEP_MHZ = 15  #: between the clocks that NVIDIA's chips can be set to
IOMMU_OFF = frozenset({"iommu=pt", "iommu=off", "amd_iommu=off", "intel_iommu=off", "iommu.passthrough=1"})


@dataclass(frozen=True)
class Machine:
    """What the settings are read from."""

    listings: tuple[Listing, ...] = ()
    root: Path = Path("/")

    def read(self, path: str) -> list[str]:
        """The contents of all files that a pattern fits, those that can be read."""
        return [text for file in self.files(path) if (text := _text(file))]

    def files(self, path: str) -> list[Path]:
        """The files that an absolute pattern fits."""
        return [Path(found) for found in sorted(glob.glob(f"{self.root}{path}"))]

    def gpus(self, vendor: str) -> list[Gpu]:
        """A vendor's GPUs."""
        return [gpu for listing in self.listings if listing.vendor == vendor for gpu in listing.gpus]

    def told(self, vendor: str, setting: str) -> str:
        """A setting of all of a vendor's GPUs, each value once; nothing where none tells of it."""
        return ", ".join(sorted({gpu.settings[setting] for gpu in self.gpus(vendor) if setting in gpu.settings}))


@dataclass(frozen=True)
class Write:
    """A change that is writing a text to all files that a pattern fits."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"echo {self.text} | sudo tee {self.path}"


@dataclass(frozen=True)
class Run:
    """A change that is running a tool."""

    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"sudo {shlex.join(self.argv)}"


Fix = Write | Run


def _unchanged(machine: Machine) -> Sequence[Fix]:
    return ()


@dataclass(frozen=True)
class Setting:
    """One setting: how it is found, what it should be, how it is changed."""

    name: str
    found: Callable[[Machine], str]  #: nothing where it does not apply
    wanted: str
    advice: str
    accepted: tuple[str, ...] = ()  #: other values that will do
    fixes: Callable[[Machine], Sequence[Fix]] = _unchanged  #: none: a person has to do it

    def check(self, machine: Machine) -> Check | None:
        """How it is on a machine; None where it does not apply."""
        found = self.found(machine)
        if not found:
            return None
        is_ok = found in (self.wanted, *self.accepted)
        return Check(self.name, found, self.wanted, is_ok, "" if is_ok else self.advice)


def _numa_balancing(machine: Machine) -> str:
    return "".join(machine.read("/proc/sys/kernel/numa_balancing"))


def _huge_pages(machine: Machine) -> str:
    """The word in brackets of `always [madvise] never`."""
    text = "".join(machine.read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return text.partition("[")[2].partition("]")[0]


def _governor(machine: Machine) -> str:
    return ", ".join(sorted(set(machine.read("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"))))


def _iommu(machine: Machine) -> str:
    if not machine.gpus("amd") or not machine.files("/sys/class/iommu/*"):
        return ""
    given = "".join(machine.read("/proc/cmdline")).split()
    types = sorted(set(machine.read("/sys/kernel/iommu_groups/*/type")))
    return next((word for word in given if word in IOMMU_OFF), ", ".join(types) or "translates")


def _dev_kernarg(machine: Machine) -> str:
    kinds = {kind for gpu in machine.gpus("amd") if (kind := kind_of_gpu(gpu.name))}
    told = {environment((Device(kind, 0),)).get("HIP_FORCE_DEV_KERNARG", "not set") for kind in kinds}
    return ", ".join(sorted(told))


def _deterministic_clocks(machine: Machine) -> list[Run]:
    """Nothing where the guide does not name the chip's clock."""
    caps = {DETERMINISTIC_MHZ.get(kind_of_gpu(gpu.name) or "") for gpu in machine.gpus("amd")}
    tool = driver_tools.find("rocm-smi") or "rocm-smi"
    return [Run((tool, "--setperfdeterminism", str(mhz))) for mhz in caps if len(caps) == 1 and mhz]


def _nvidia_clocks(machine: Machine) -> str:
    """Whether all run below their highest clock; drivers from release 580 on don't tell."""
    names = ("clocks.applications.graphics", "clocks.max.graphics")
    pairs = [tuple(_mhz(gpu.settings.get(name)) for name in names) for gpu in machine.gpus("nvidia")]
    known = [(set_to, highest) for set_to, highest in pairs if set_to and highest]
    return "" if not known else "capped" if all(set_to < highest for set_to, highest in known) else "highest"


def _capped_nvidia_clocks(machine: Machine) -> list[Run]:
    tool = driver_tools.find("nvidia-smi") or "nvidia-smi"
    runs = []
    for gpu in machine.gpus("nvidia"):
        memory, highest = (_mhz(gpu.settings.get(f"clocks.max.{name}")) for name in ("memory", "graphics"))
        if memory and highest:
            capped = int(highest * NVIDIA_SHARE) // NVIDIA_STEP_MHZ * NVIDIA_STEP_MHZ
            runs.append(Run((tool, "-i", str(gpu.index), "-ac", f"{memory},{capped}")))
    return runs


def _mhz(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


SETTINGS = (
    Setting(
        "numa_balancing",
        _numa_balancing,
        wanted="0",
        advice="turn automatic NUMA balancing off: moving pages stops the processes that use them",
        fixes=lambda machine: [Write("/proc/sys/kernel/numa_balancing", "0")],
    ),
    Setting(
        "transparent_huge_pages",
        _huge_pages,
        wanted="madvise",
        accepted=("always",),
        advice="let programs have huge pages",
        fixes=lambda machine: [Write("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")],
    ),
    Setting(
        "cpu_governor",
        _governor,
        wanted="performance",
        advice="keep the processors at their highest clock",
        fixes=lambda machine: [Write("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "performance")],
    ),
    Setting(
        "iommu",
        _iommu,
        wanted="iommu=pt",
        accepted=(*IOMMU_OFF, "identity"),
        advice="add iommu=pt to the kernel's command line and start the machine again: GPUs then reach memory directly",
    ),
    Setting(
        "hip_force_dev_kernarg",
        _dev_kernarg,
        wanted="1",
        advice="haloctl sets it for every attempt on an AMD GPU",
    ),
    Setting(
        "amd_clocks",
        lambda machine: machine.told("amd", "performance_level"),
        wanted="perf_determinism",
        advice="cap the clock below its highest, so that heat does not change it: rocm-smi --setperfdeterminism MHZ",
        fixes=_deterministic_clocks,
    ),
    Setting(
        "nvidia_persistence",
        lambda machine: machine.told("nvidia", "persistence_mode"),
        wanted="Enabled",
        advice="keep the driver loaded between programs",
        fixes=lambda machine: [Run((driver_tools.find("nvidia-smi") or "nvidia-smi", "-pm", "1"))],
    ),
    Setting(
        "nvidia_clocks",
        _nvidia_clocks,
        wanted="capped",
        advice="cap the clock below its highest, so that heat does not change it: nvidia-smi -ac MEMORY,GRAPHICS",
        fixes=_capped_nvidia_clocks,
    ),
)


def checks(machine: Machine) -> tuple[Check, ...]:
    """All that applies to a machine: whether its tools answer, then its settings."""
    return (*map(_tool_check, machine.listings), *filter(None, (setting.check(machine) for setting in SETTINGS)))


def _tool_check(listing: Listing) -> Check:
    advice = f"see whether {listing.tool} answers on the machine; its GPUs are not used until it does"
    return Check(
        f"{listing.vendor}_tool",
        listing.error or f"{listing.tool} lists {len(listing.gpus)}",
        "an answer",
        not listing.error,
        advice if listing.error else "",
    )


@dataclass(frozen=True)
class Change:
    """What was done about a setting, or why it was not."""

    setting: str
    fix: Fix
    error: str = ""  #: empty: it was done


def fix(machine: Machine) -> Iterator[Change]:
    """Change every setting that is not as wanted and that can be changed from here, one after another."""
    for setting in SETTINGS:
        check = setting.check(machine)
        if check and not check.is_ok:
            for one in setting.fixes(machine):
                yield Change(setting.name, one, _apply(one, machine))


def _apply(fix: Fix, machine: Machine) -> str:
    """Make one change; why it failed, or nothing."""
    if isinstance(fix, Write):
        return "; ".join(filter(None, (_write(file, fix.text) for file in machine.files(fix.path))))
    if os.geteuid():
        return "root alone may do that"
    try:
        driver_tools.output_of(Path(fix.argv[0]).name, fix.argv)
    except ToolFailed as error:
        return str(error)
    return ""


def _write(file: Path, text: str) -> str:
    try:
        file.write_text(text)
    except OSError as error:
        return f"{file}: {error.strerror}"
    return ""


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
