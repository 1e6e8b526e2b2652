"""Processes on a GPU: what makes a process one, and which ones the kernel's accounting of AMD's GPUs lists.

Reading that takes microseconds and starts no tool. In /sys/class/kfd/kfd, amdgpu's compute driver has a folder for each
process that opened it, `proc/PID` with its pid in the host's namespace, whichever container reads it. In it, `vram_GPU`
is how many bytes of one GPU it holds, `stats_GPU/cu_occupancy` how many compute units it occupies at this moment
(Linux, drivers/gpu/drm/amd/amdkfd/kfd_process.c). The nodes of `topology` that are GPUs have a `gpu_id` other than 0,
and `properties` with the numbers of their chip and their render node (kfd_topology.c, same folder). What all processes
together hold of a card is `mem_info_vram_used` (https://docs.kernel.org/gpu/amdgpu/driver-misc.html), and what one
process holds is in its own fdinfo, in containers too (https://docs.kernel.org/gpu/drm-usage-stats.html).
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MIN_USED_BYTES = 64 << 20  #: a HIP program holds a little memory of GPUs that it does not use
ROOT = Path("/")  #: where sysfs and procfs are mounted at sys and proc
KFD = "sys/class/kfd/kfd"
#: The standard's key, and that of earlier kernels.
DRM_VRAM = re.compile(r"^drm-(?:resident|memory)-vram:\s*(\d+)\s*(KiB|MiB)?\s*$", re.M)
DRM_CLIENT = re.compile(r"^drm-client-id:\s*(\d+)\s*$", re.M)
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}


@dataclass(frozen=True)
class GpuProcess:
    """A process that has a GPU open."""

    pid: int
    name: str = ""
    held_bytes: int | None = None  #: of the GPU's memory; None: unknown
    is_computing: bool = False  #: as far as that is reported

    @property
    def is_using_gpu(self) -> bool:
        """Whether it computes or holds memory there; else it is a monitor, or a program on another GPU."""
        return self.is_computing or self.held_bytes is None or self.held_bytes >= MIN_USED_BYTES


@dataclass(frozen=True)
class KfdNode:
    """A GPU in the topology of AMD's compute driver."""

    gpu_id: int
    unique_id: int
    render_minor: int

    def used_bytes(self, root: Path = ROOT) -> int | None:
        """Return how much of its memory all processes hold together; None if unknown."""
        return _read_int(f"{root}/sys/class/drm/renderD{self.render_minor}/device/mem_info_vram_used")


def kfd_nodes(root: Path = ROOT) -> list[KfdNode]:
    """Return the GPUs that this process may use, in the order in which HIP counts them."""
    folders = (folder for folder in (root / KFD / "topology/nodes").glob("*") if folder.name.isdecimal())
    nodes = []
    for folder in sorted(folders, key=lambda folder: int(folder.name)):
        if gpu_id := _read_int(f"{folder}/gpu_id"):
            properties = dict(re.findall(r"^(\w+) (\d+)$", _read_text(f"{folder}/properties"), re.M))
            unique_id, render_minor = properties.get("unique_id", 0), properties.get("drm_render_minor", -1)
            nodes.append(KfdNode(gpu_id, int(unique_id), int(render_minor)))
    return nodes


def kfd_processes(gpu_ids: Sequence[int], root: Path = ROOT) -> dict[int, tuple[GpuProcess, ...]] | None:
    """Return the processes that have the compute driver open, by GPU; None where the kernel doesn't account for them.

    Left out is what ends meanwhile, and what this container must not read.
    """
    accounting = f"{root / KFD}/proc"
    try:
        pids = os.listdir(accounting)
    except OSError:
        return None
    processes: dict[int, list[GpuProcess]] = {gpu_id: [] for gpu_id in gpu_ids}
    for pid in filter(str.isdecimal, pids):
        folders = _context_folders(f"{accounting}/{pid}")
        for gpu_id in gpu_ids:
            sizes = [_read_int(f"{folder}/vram_{gpu_id}") for folder in folders]
            if known := [size for size in sizes if size is not None]:
                held_bytes = sum(known)
                is_little = 0 < held_bytes < MIN_USED_BYTES  # what computes holds its code at least
                computes = is_little and any(_read_int(f"{folder}/stats_{gpu_id}/cu_occupancy") for folder in folders)
                processes[gpu_id].append(GpuProcess(int(pid), "", held_bytes, computes))
    return {gpu_id: tuple(on_gpu) for gpu_id, on_gpu in processes.items()}


def _context_folders(process: str) -> list[str]:
    """Return a process's folder, and those of its further contexts: `context_ID`, in kernels that have them."""
    with suppress(OSError):
        return [process, *(f"{process}/{name}" for name in os.listdir(process) if name.startswith("context_"))]
    return []


def drm_vram_bytes(pids: Iterable[int], render_minor: int, root: Path = ROOT) -> int | None:
    """Return how much memory of one GPU some processes hold by their fdinfo; None where one of them doesn't say."""
    clients: dict[str, int] = {}
    for pid in pids:
        process = f"{root / 'proc'}/{pid}"
        try:
            files = os.listdir(f"{process}/fd")
        except FileNotFoundError:
            continue
        except OSError:
            return None
        for file in files:
            with suppress(OSError):
                if os.readlink(f"{process}/fd/{file}") == f"/dev/dri/renderD{render_minor}":
                    text = _read_text(f"{process}/fdinfo/{file}")
                    if not text and not os.path.exists(process):
                        break
                    vram = DRM_VRAM.search(text)
                    if vram is None:
                        return None
                    client = DRM_CLIENT.search(text)
                    clients[client[1] if client else f"{pid}.{file}"] = int(vram[1]) * UNITS[vram[2] or ""]
    return sum(clients.values())


def kfd_nodes_by_serial(nodes: Iterable[KfdNode]) -> Mapping[str, KfdNode]:
    """Return nodes by the serial numbers that listings have; without chips whose number another one has too."""
    known = list(nodes)
    ids = [node.unique_id for node in known]
    return {f"0x{node.unique_id:016x}": node for node in known if node.unique_id and ids.count(node.unique_id) == 1}


def _read_int(path: str) -> int | None:
    """Read a number from a file of the kernel, without the cost of pathlib and of decoding; None if there is none."""
    with suppress(OSError, ValueError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 64))
        finally:
            os.close(file)
    return None


def _read_text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""
