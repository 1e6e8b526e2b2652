"""What tells how long each kernel took: IREE's own profiler on CPUs, ROCm's on AMD's GPUs, Nsight Systems on NVIDIA's.

Each runs the command in a process of its own and answers with the same rows. IREE's drivers for HIP and CUDA have no
profiler of their own (3.13: "HIP HAL-native profiling is not implemented").
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from workers.llm.command_line import EXIT_FAILED, BadInput, ProgramFailed

MODES = "queue-events,host-execution,executable-metadata"  #: others are refused, or of no use here

TRIES = 2
SIGNALS = 128  #: above it, exit codes are signals that ended what a script started


@dataclass(frozen=True)
class KernelTime:
    """All calls of a kernel on one device, while the command ran.

    The first calls meet cold caches, and some are interrupted: the median call stands for all.
    """

    kernel: str
    device: int
    calls: int
    median_us: float

    @property
    def total_us(self) -> float:
        """The time of all calls, had each taken as long as the median one."""
        return self.calls * self.median_us


@dataclass(frozen=True)
class Collector:
    """One tool."""

    tools: tuple[str, ...]
    run: Callable[[Sequence[str], Path], list[KernelTime]]  #: runs a command; what the tool writes goes to the folder
    install_hint: str


def find_tool(name: str) -> str | None:
    """Return the path of a tool, beside this interpreter or on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def collect(name: str, command: Sequence[str], folder: Path) -> list[KernelTime]:
    """Run a command under a collector. Raises BadInput where the collector is not installed."""
    collector = COLLECTORS[name]
    if missing := [tool for tool in collector.tools if find_tool(tool) is None]:
        raise BadInput(f"{', '.join(missing)} is not on PATH: {collector.install_hint}")
    return collector.run(command, folder)


def run_tool(argv: Sequence[str]) -> str:
    """Run a tool and return its stdout; once more where it crashed, as IREE's runtime seldom does when it ends.

    Raises ProgramFailed with the end of its stderr.
    """
    tool = argv[0] if os.path.isabs(argv[0]) else find_tool(argv[0])
    if tool is None:
        raise BadInput(f"{argv[0]} is neither beside {sys.executable} nor on PATH: install the toolchain's runtime")
    for _ in range(TRIES):
        done = subprocess.run([tool, *argv[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if not (done.returncode < 0 or done.returncode > SIGNALS):
            break
        print(f"{Path(tool).name} crashed ({done.returncode})", flush=True)
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
        raise ProgramFailed(f"{Path(tool).name} exited with {done.returncode}", EXIT_FAILED)
    return done.stdout


def _iree(command: Sequence[str], folder: Path) -> list[KernelTime]:
    file = folder / "profile.ireeprof"
    run_tool([*command, f"--device_profiling_mode={MODES}", f"--device_profiling_output={file}"])
    return parse_iree(run_tool(["iree-profile", "dispatch", "--format=jsonl", "--dispatch_events", str(file)]))


def parse_iree(text: str) -> list[KernelTime]:
    """Parse what `iree-profile dispatch --dispatch_events` prints of a CPU."""
    rows = map(json.loads, filter(None, text.splitlines()))
    events = (row for row in rows if row["type"] == "host_dispatch_event")
    return _summed((row["key"], int(row["physical_device_ordinal"]), row["duration_ns"]) for row in events)


def _rocprofv3(command: Sequence[str], folder: Path) -> list[KernelTime]:
    argv = ["rocprofv3", "--kernel-trace", "--output-format", "csv", "-d", str(folder), "--", *command]
    run_tool(argv)
    return [row for file in sorted(folder.rglob("*kernel_trace.csv")) for row in parse_rocprofv3(file.read_text())]


def parse_rocprofv3(text: str) -> list[KernelTime]:
    """Parse the CSV of `rocprofv3 --kernel-trace`; a device is numbered in the order of its agent's id."""
    rows = list(csv.DictReader(text.splitlines()))
    agents = sorted({row["Agent_Id"] for row in rows}, key=lambda name: int(name.split()[-1]))
    return _summed(
        (
            row["Kernel_Name"].strip().removesuffix(".kd"),
            agents.index(row["Agent_Id"]),
            int(row["End_Timestamp"]) - int(row["Start_Timestamp"]),
        )
        for row in rows
    )


def _nsys(command: Sequence[str], folder: Path) -> list[KernelTime]:
    file = folder / "profile.nsys-rep"
    run_tool(["nsys", "profile", "--trace=cuda", f"--output={file}", *command])
    return parse_nsys(run_tool(["nsys", "stats", "--report=cuda_gpu_trace", "--format=csv", "--output=-", str(file)]))


def parse_nsys(text: str) -> list[KernelTime]:
    """Parse the CSV of `nsys stats --report cuda_gpu_trace`; copies are in it too, by names in brackets."""
    lines = text.splitlines()
    begin = next((index for index, line in enumerate(lines) if line.startswith("Start (ns)")), len(lines))
    rows = [row for row in csv.DictReader(lines[begin:]) if not row["Name"].startswith("[")]
    devices = sorted({row["Device"] for row in rows})
    return _summed((row["Name"], devices.index(row["Device"]), int(row["Duration (ns)"])) for row in rows)


def _summed(calls: Iterable[tuple[str, int, int]]) -> list[KernelTime]:
    """Return the times of kernels from single calls: kernel, device and nanoseconds."""
    times: dict[tuple[str, int], list[int]] = defaultdict(list)
    for kernel, device, duration_ns in calls:
        times[kernel, device].append(duration_ns)
    return [KernelTime(*key, len(each), median(each) / 1e3) for key, each in times.items()]


COLLECTORS: dict[str, Collector] = {
    "ireeprof": Collector(("iree-profile",), _iree, "use a toolchain whose iree-base-runtime has it (3.13 and later)"),
    "rocprofv3": Collector(("rocprofv3",), _rocprofv3, "install rocprofiler-sdk of ROCm, in /opt/rocm/bin"),
    "nsys": Collector(("nsys",), _nsys, "install NVIDIA Nsight Systems"),
}
