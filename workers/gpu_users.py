"""Processes on a GPU: what makes one a user of it, and who is by the kernel's own books of AMD's GPUs.

Reading those costs microseconds, and no tool is started. In /sys/class/kfd/kfd, amdgpu's compute driver has a folder of
each process that opened it, `proc/PID` with the number that the machine itself gives it, whichever container asks. In
it, `vram_GPU` is how many bytes of one GPU it holds, `stats_GPU/cu_occupancy` how many compute units it occupies at
this moment (Linux, drivers/gpu/drm/amd/amdkfd/kfd_process.c). The nodes of `topology` that are GPUs have a `gpu_id`
that is not 0, and `properties` with the numbers of their chip and their render node (kfd_topology.c, same folder).
What all hold of a card together is `mem_info_vram_used` (https://docs.kernel.org/gpu/amdgpu/driver-misc.html), and what
a process itself holds stands in its fdinfo, in containers too (https://docs.kernel.org/gpu/drm-usage-stats.html).
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ON_IT_BYTES = 64 << 20  #: a HIP program keeps a little on GPUs that it does not use
SYS = Path("/sys")
PROC = Path("/proc")
KFD = "class/kfd/kfd"
#: The standard's name of it, and that of kernels before it.
HELD = re.compile(r"^drm-(?:resident|memory)-vram:\s*(\d+)\s*(KiB|MiB)?\s*$", re.M)
CLIENT = re.compile(r"^drm-client-id:\s*(\d+)\s*$", re.M)
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}


@dataclass(frozen=True)
class GpuUser:
    """A process on a GPU."""

    pid: int
    name: str = ""
    held_bytes: int | None = None  #: of the GPU's memory; None: not told
    is_computing: bool = False  #: as far as that is told

    @property
    def is_on_it(self) -> bool:
        """Whether it uses the GPU; one that only has it open may be a monitor, or a program on another GPU."""
        return self.is_computing or self.held_bytes is None or self.held_bytes >= ON_IT_BYTES


@dataclass(frozen=True)
class KfdNode:
    """A GPU in the topology of the compute driver."""

    gpu_id: int
    unique_id: int
    render_minor: int

    def used_bytes(self, sys: Path | None = None) -> int | None:
        """Of its memory, by all; None where it is not told."""
        return _number_in(f"{sys or SYS}/class/drm/renderD{self.render_minor}/device/mem_info_vram_used")


def kfd_nodes(sys: Path | None = None) -> list[KfdNode]:
    """The GPUs that this process may use, in the order in which HIP counts them."""
    nodes = (sys or SYS) / KFD / "topology/nodes"
    found = []
    for node in sorted((one for one in nodes.glob("*") if one.name.isdecimal()), key=lambda one: int(one.name)):
        if gpu_id := _number_in(f"{node}/gpu_id"):
            told = dict(re.findall(r"^(\w+) (\d+)$", _text_of(f"{node}/properties"), re.M))
            found.append(KfdNode(gpu_id, int(told.get("unique_id", 0)), int(told.get("drm_render_minor", -1))))
    return found


def kfd_users(gpu_ids: Sequence[int], sys: Path | None = None) -> dict[int, tuple[GpuUser, ...]] | None:
    """The processes that have the driver open, by GPU, by the kernel's own books; None where it keeps none.

    What ended under the look is left out, and what is not for this container to read.
    """
    processes = f"{(sys or SYS) / KFD}/proc"
    try:
        pids = os.listdir(processes)
    except OSError:
        return None
    found: dict[int, list[GpuUser]] = {gpu_id: [] for gpu_id in gpu_ids}
    for pid in filter(str.isdecimal, pids):
        folders = _folders_of(f"{processes}/{pid}")
        for gpu_id in gpu_ids:
            if held := [told for one in folders if (told := _number_in(f"{one}/vram_{gpu_id}")) is not None]:
                is_little = 0 < sum(held) < ON_IT_BYTES  # one that computes holds its code at least
                computes = is_little and any(_number_in(f"{one}/stats_{gpu_id}/cu_occupancy") for one in folders)
                found[gpu_id].append(GpuUser(int(pid), "", sum(held), computes))
    return {gpu_id: tuple(users) for gpu_id, users in found.items()}


def _folders_of(process: str) -> list[str]:
    """That of a process, and those of more contexts that it has: `context_ID`, with kernels that know such."""
    with suppress(OSError):
        return [process, *(f"{process}/{name}" for name in os.listdir(process) if name.startswith("context_"))]
    return []


def drm_bytes(pids: Iterable[int], render_minor: int) -> int | None:
    """What some processes hold of one GPU, as they tell themselves; None where one that opened it does not."""
    clients: dict[str, int] = {}
    for pid in pids:
        try:
            files = os.listdir(PROC / str(pid) / "fd")
        except FileNotFoundError:
            continue
        except OSError:
            return None
        for file in files:
            with suppress(OSError):
                if os.readlink(f"{PROC}/{pid}/fd/{file}") == f"/dev/dri/renderD{render_minor}":
                    text = _text_of(f"{PROC}/{pid}/fdinfo/{file}")
                    if not text and not os.path.exists(f"{PROC}/{pid}"):
                        break
                    held = HELD.search(text)
                    if held is None:
                        return None
                    client = CLIENT.search(text)
                    clients[client[1] if client else f"{pid}.{file}"] = int(held[1]) * UNITS[held[2] or ""]
    return sum(clients.values())


def by_serial(nodes: Iterable[KfdNode]) -> Mapping[str, KfdNode]:
    """Those whose chip's number is no other one's too, by it as listings write it."""
    known = list(nodes)
    ids = [node.unique_id for node in known]
    return {f"0x{node.unique_id:016x}": node for node in known if node.unique_id and ids.count(node.unique_id) == 1}


def _number_in(path: str) -> int | None:
    """What a file of the kernel says, or None; without what pathlib and text decoding cost."""
    with suppress(OSError, ValueError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 64))
        finally:
            os.close(file)
    return None


def _text_of(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""
