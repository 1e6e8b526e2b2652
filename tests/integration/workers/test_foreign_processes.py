"""Foreign processes on a GPU while something is measured there: real processes and trees, stand-in drivers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from jobs.task import Attempt, Device
from jobs.toolchains import Toolchain
from tests.gpu_drivers import GIB, IDLE_BYTES, MIB, Drivers, KernelBooks
from tests.integration.attempts import FINITE_INVOCATION, make_attempt, python, timed_once, until
from workers.artifacts import ArtifactStore
from workers.attempts.run_task import run
from workers.machine import fitness
from workers.machine.gpu_listing import Gpu, GpuListing
from workers.machine.gpu_processes import GpuProcess, drm_vram_bytes, kfd_nodes, kfd_processes
from workers.measurement.foreign_processes import INVISIBLE_PROCESS, ForeignProcess, ForeignProcessMonitor
from workers.measurement.measuring import run_measured
from workers.measurement.sampling import Sampler
from workers.processes import attempt_processes, proc
from workers.processes.cancellation import Cancellation

GPUS = {
    "mi300x": ("rocm-smi", Device("mi300x", 1, "0x00000000000000a1")),
    "h100": ("nvidia-smi", Device("h100", 1, "GPU-a1")),
}
NAMES = {"mi300x": "AMD Instinct MI300X OAM", "h100": "NVIDIA H100 80GB HBM3"}
CARD = 1
TOOLCHAIN = Toolchain("default", {})
AMD = GPUS["mi300x"][1]
NVIDIA = GPUS["h100"][1]
WAIT = "import sys; sys.stdin.read()"

#: Is a benchmark of two processes, of which one is in a session of its own. The file argv[1] gets their numbers, and
#: they end when there is a file argv[2].
MEASURED = """
import json, os, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE,
                         start_new_session=True)
with open(sys.argv[1] + ".part", "w") as file:
    json.dump([os.getpid(), other.pid], file)
os.replace(sys.argv[1] + ".part", sys.argv[1])
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
other.communicate()
run = {"run_type": "iteration", "repetition_index": 0, "real_time": 2.0, "time_unit": "ms"}
for name in ("prefill_bs1_t8", "decode_bs1_t8"):
    json.dump({"benchmarks": [run]}, open(f"outputs/{name}.json", "w"))
"""


@pytest.fixture
def books(tmp_path: Path) -> KernelBooks:
    return KernelBooks(tmp_path)


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def process(processes: ExitStack) -> int:
    """A child of the tests: of no attempt, unless its parent is taken for a supervisor."""
    child = processes.enter_context(subprocess.Popen([sys.executable, "-IS", "-c", WAIT], stdin=subprocess.PIPE))
    processes.callback(child.kill)
    until(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes(), "the kernel has set it up")
    return child.pid


def ended() -> int:
    """The number of a process that is no more."""
    with subprocess.Popen(["/bin/true"]) as child:
        child.wait()
    return child.pid


def monitoring(device: Device, root: Path) -> ForeignProcessMonitor:
    """Outside of containers, where drivers know processes by their pids."""
    return ForeignProcessMonitor(make_attempt(devices=(device,)), root, has_host_pids=True)


def monitoring_in_container(device: Device, root: Path) -> ForeignProcessMonitor:
    """Where drivers know processes by other pids."""
    return ForeignProcessMonitor(make_attempt(devices=(device,)), root, has_host_pids=False)


def poll(
    monitor: ForeignProcessMonitor,
    *reported: GpuProcess,
    at_s: float = 0.0,
    supervisor: int | None = None,
    used: int = 0,
) -> list[ForeignProcess]:
    """Poll a GPU once; one of NVIDIA's as a tool reports it."""
    gpus = {NVIDIA: Gpu(CARD, "", used_bytes=used, processes=reported)} if reported or used else {}
    return [process for on_gpu in monitor.poll(at_s, supervisor, gpus).values() for process in on_gpu]


@pytest.mark.parametrize("kind", GPUS)
def test_a_foreign_process_in_the_middle_of_a_benchmark_disturbs_it_and_it_is_run_again(
    kind: str, books: KernelBooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: ExitStack
) -> None:
    """Before and after it nobody else is there; its own processes hold memory all the time."""
    tool, device = GPUS[kind]
    drivers = Drivers(tmp_path / "tools", tool, name=NAMES[kind])
    monkeypatch.setenv("PATH", drivers.environment()["PATH"])
    samplers: list[Sampler] = []

    def create_sampler(attempt: Attempt) -> Sampler:
        monitor = ForeignProcessMonitor(attempt, books.root, has_host_pids=True)
        samplers.append(Sampler(attempt, interval_s=0.02, max_cpu_share=1.0, monitor=monitor))
        return samplers[-1]

    def is_polled(foreign: int) -> bool:
        polls = [
            sample.foreign_processes[device] for sample in samplers[0].samples if device in sample.foreign_processes
        ]
        return bool(polls) and len(polls[-1]) == foreign

    def give(pid: int, held_bytes: int) -> None:
        drivers.give(CARD, pid, held_bytes)
        books.give(CARD, pid, held_bytes)

    pids, go = tmp_path / "pids", tmp_path / "go"
    benchmark = replace(
        make_attempt(python(MEASURED, str(pids), str(go)), python(""), devices=(device,)),
        stage="benchmark",
        settings=timed_once(kind, reruns=2),
    )
    foreign, store = process(processes), ArtifactStore(tmp_path / "artifacts")
    with ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        stack.callback(go.touch)
        measure = partial(run_measured, create_sampler=create_sampler)
        running = threads.submit(run, benchmark, tmp_path, store, TOOLCHAIN, Cancellation(), measure=measure)
        until(pids.exists, "it runs")
        for pid in pids.read_text().strip("[]").split(","):
            give(int(pid), 60 * GIB)
        until(lambda: is_polled(0), "it was alone")
        give(foreign, 12 * GIB)
        until(lambda: is_polled(1), "the foreign process was seen")
        drivers.take(CARD, foreign)
        books.take(foreign)
        until(lambda: is_polled(0), "it was alone again")
    result = running.result()
    assert (result.failure, result.warnings, result.unfit) == (None, (), ())
    assert len(samplers) == 2
    context = next(measurement.context for measurement in result.measurements if measurement.metric == "ttft_ms")
    assert "disturbed" not in context
    (earlier,) = context["disturbed_runs"]
    assert earlier["disturbed"].startswith(f"{kind}:1: in use by pid {foreign} (")
    assert " with 12.0 GiB for " in earlier["disturbed"]
    assert earlier["samples"] == [2.0]
    (about,) = context["machine"]["devices"]
    assert "foreign_processes" not in about


def test_a_process_that_holds_memory_or_computes_is_foreign_and_a_monitor_is_not(
    books: KernelBooks, processes: ExitStack
) -> None:
    holds, computes, monitors, elsewhere = (process(processes) for _ in range(4))
    books.give(CARD, holds, 2 * GIB, compute_units=304)
    books.give(CARD, computes, 8192, compute_units=16)
    books.give(CARD, monitors, 0)
    books.give(CARD, elsewhere, 30 * MIB)  # a HIP program on the other card
    books.give(1 - CARD, elsewhere, 100 * GIB)
    foreign = poll(monitoring(AMD, books.root))
    assert {(process.pid, process.held_bytes) for process in foreign} == {(holds, 2 * GIB), (computes, 8192)}
    assert foreign[0].who.startswith(f"pid {foreign[0].pid} ({Path(sys.executable).name[:15]}")
    by_gpu = kfd_processes([books.gpu_id(CARD), books.gpu_id(1 - CARD)], books.root) or {}
    assert [sum(user.is_using_gpu for user in users) for users in by_gpu.values()] == [2, 1]


def test_all_contexts_of_a_process_count(books: KernelBooks, processes: ExitStack) -> None:
    holds = process(processes)
    books.give(CARD, holds, 40 * MIB)
    assert poll(monitoring(AMD, books.root)) == []
    more = books.kfd / "proc" / str(holds) / "context_1"
    more.mkdir()
    (more / f"vram_{books.gpu_id(CARD)}").write_text(f"{40 * MIB}\n")
    assert [process.held_bytes for process in poll(monitoring(AMD, books.root))] == [80 * MIB]


def test_processes_below_the_supervisor_are_not_foreign(books: KernelBooks, processes: ExitStack) -> None:
    for _ in range(2):
        books.give(CARD, process(processes), 90 * GIB)
    monitor = monitoring(AMD, books.root)
    assert poll(monitor, supervisor=os.getpid()) == []
    assert len(poll(monitor)) == 2  # without that they would be


def test_an_attempts_own_mark_is_enough(books: KernelBooks, processes: ExitStack) -> None:
    own_attempt = make_attempt(devices=(AMD,))
    command = [sys.executable, "-IS", "-c", WAIT]
    child = processes.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, env={"HALOCTL_ATTEMPT": own_attempt.id})
    )
    processes.callback(child.kill)
    until(lambda: attempt_processes.attempt_of(child.pid), "the kernel has set it up")
    books.give(CARD, child.pid, GIB)
    assert poll(ForeignProcessMonitor(own_attempt, books.root, has_host_pids=True)) == []


def test_what_vanished_or_can_not_be_read_is_not_foreign(books: KernelBooks, processes: ExitStack) -> None:
    monitor, gone = monitoring(AMD, books.root), ended()
    books.give(CARD, gone, 100 * GIB)
    assert poll(monitor) == []
    assert proc.is_in_tree(gone, os.getpid())  # it can't be told any more
    books.take(gone)
    (books.kfd / "proc" / str(gone)).mkdir()  # listed, and gone when it is read
    odd = books.kfd / "proc" / str(process(processes)) / f"vram_{books.gpu_id(CARD)}"
    odd.mkdir(parents=True)  # not to be read by anybody, not even root
    (books.kfd / "proc" / "4711").mkdir()
    (books.kfd / "proc" / "4711" / f"vram_{books.gpu_id(CARD)}").write_text("")
    assert kfd_processes([books.gpu_id(CARD)], books.root) == {books.gpu_id(CARD): ()}
    assert poll(monitor) == []
    holds = process(processes)
    books.give(CARD, holds, GIB)
    assert [process.pid for process in poll(monitor)] == [holds]


def test_without_the_drivers_accounting_no_process_is_reported(tmp_path: Path) -> None:
    assert kfd_nodes(tmp_path) == []
    assert kfd_processes([41463], tmp_path) is None
    assert poll(monitoring(AMD, tmp_path)) == []


def test_gpus_are_found_by_serial_and_else_in_the_order_of_hip(books: KernelBooks, processes: ExitStack) -> None:
    holds = process(processes)
    books.give(0, holds, GIB)
    assert [process.pid for process in poll(monitoring(Device("mi300x", 1, "0x00000000000000a0"), books.root))] == [
        holds
    ]
    assert (
        poll(monitoring(Device("mi300x", 0, "0x00000000000000ff"), books.root)) == []
    )  # another card came in its place
    for node in (books.kfd / "topology/nodes").glob("[12]"):
        (node / "properties").write_text("unique_id 0\ndrm_render_minor 128\n")
    assert [process.pid for process in poll(monitoring(Device("mi300x", 0), books.root))] == [holds]


class InContainer:
    """A made /proc in which a process of this machine has files of a driver open."""

    def __init__(self, root: Path, pid: int) -> None:
        self.folder = root / "proc" / str(pid)
        for name in ("fd", "fdinfo"):
            (self.folder / name).mkdir(parents=True)

    def open(self, device: Path, file: int = 7) -> None:
        link = self.folder / "fd" / str(file)
        link.unlink(missing_ok=True)
        link.symlink_to(device)

    def hold(self, held: str, render_minor: int = 136, file: int = 7, client: int = 42) -> None:
        self.open(Path(f"/dev/dri/renderD{render_minor}"), file)
        text = f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t0000:c5:00.0\n{held}\n"
        (self.folder / "fdinfo" / str(file)).write_text(text)


def test_in_a_container_memory_shows_foreign_processes_that_are_not_visible(
    books: KernelBooks, processes: ExitStack
) -> None:
    """The kernel lists its own numbers: 400001 is the attempt's process, 400002 is none of it."""
    own_pid, monitor = process(processes), monitoring_in_container(AMD, books.root)
    inside = InContainer(books.root, own_pid)
    assert poll(monitor, at_s=0, supervisor=own_pid) == []  # nobody
    books.give(CARD, 400001, 60 * GIB)
    inside.hold(f"drm-memory-vram:\t{60 << 20} KiB")
    assert [poll(monitor, at_s=at_s, supervisor=own_pid) for at_s in (1, 2, 3)] == [[]] * 3
    books.give(CARD, 400002, 12 * GIB)
    assert poll(monitor, at_s=4, supervisor=own_pid) == []  # the files were not read at the same moment
    assert poll(monitor, at_s=5, supervisor=own_pid) == [ForeignProcess(INVISIBLE_PROCESS, None, 12 * GIB)]
    books.take(400002)
    assert poll(monitor, at_s=6, supervisor=own_pid) == []
    inside.hold("drm-total-vram:\t1")  # does not tell what it holds: nothing can be said
    assert [poll(monitor, at_s=at_s, supervisor=own_pid) for at_s in (30, 31)] == [[]] * 2


def test_in_a_container_the_numbers_of_older_nvidia_drivers_accuse_nobody(processes: ExitStack, tmp_path: Path) -> None:
    monitor, own_pid = monitoring_in_container(NVIDIA, tmp_path), process(processes)
    users = [GpuProcess(400001, "python3", 60 * GIB), GpuProcess(own_pid, "python3", 9 * GIB)]
    for at_s in range(3):
        assert poll(monitor, *users, at_s=at_s, supervisor=own_pid, used=70 * GIB) == []


def test_in_a_container_newer_nvidia_drivers_tell_what_is_in_use_beside_ones_own(
    processes: ExitStack, tmp_path: Path
) -> None:
    """A process is believed to be meant where it has the driver open."""
    monitor, own_pid = monitoring_in_container(NVIDIA, tmp_path), process(processes)
    InContainer(tmp_path, own_pid).open(Path("/dev/nvidia1"))
    user = GpuProcess(own_pid, "python3", 60 * GIB)
    assert [poll(monitor, user, at_s=at_s, supervisor=own_pid, used=61 * GIB) for at_s in (0, 1)] == [[]] * 2
    polls = [poll(monitor, user, at_s=at_s, supervisor=own_pid, used=71 * GIB) for at_s in (2, 3)]
    assert polls == [[], [ForeignProcess(INVISIBLE_PROCESS, None, 10 * GIB)]]


def test_what_processes_tell_of_their_own_memory_is_counted_once(tmp_path: Path) -> None:
    first, second = InContainer(tmp_path, 11), InContainer(tmp_path, 12)
    first.hold("drm-memory-vram:\t4 MiB\ndrm-resident-vram:\t4 MiB")
    first.hold("drm-memory-vram:\t4 MiB", file=8)  # the same client, through another file
    first.hold("drm-memory-vram:\t900 MiB", render_minor=128, file=9, client=43)  # another card
    second.hold("drm-memory-vram:\t2048 KiB", client=44)
    assert drm_vram_bytes([11, 12, 13], 136, tmp_path) == 6 * MIB
    (second.folder / "fdinfo" / "7").unlink()  # it lives, and may not be looked at
    assert drm_vram_bytes([11, 12], 136, tmp_path) is None
    assert drm_vram_bytes([], 136, tmp_path) == 0


def test_one_rule_says_what_uses_a_gpu_before_after_and_during_an_attempt(
    books: KernelBooks, processes: ExitStack
) -> None:
    holds = process(processes)
    books.give(CARD, holds, 65 * MIB)
    books.give(CARD, process(processes), 63 * MIB)
    using = (kfd_processes([books.gpu_id(CARD)], books.root) or {})[books.gpu_id(CARD)]
    listing = GpuListing("amd", "rocm-smi", (Gpu(CARD, NAMES["mi300x"], used_bytes=IDLE_BYTES, processes=using),))
    (problem,) = fitness.gpu_problems([replace(AMD, serial="")], listing)
    assert problem.reason.startswith(f"in use by pid {holds} ")
    assert ", pid" not in problem.reason
    assert [process.pid for process in poll(monitoring(AMD, books.root))] == [holds]


def test_a_sampled_attempt_without_gpus_has_no_foreign_processes() -> None:
    with Sampler(make_attempt(python(FINITE_INVOCATION)), interval_s=0.01) as sampler:
        until(lambda: sampler.samples, "a sample was taken")
    assert sampler.samples[0].foreign_processes == {}
