"""Strangers on a GPU while something is measured there: processes, guards and trees are real, the drivers stand-ins."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.task import Attempt, Device
from jobs.toolchains import Toolchain
from tests.gpu_drivers import GIB, IDLE_BYTES, MIB, Drivers, KernelBooks
from tests.integration.attempts import FINITE_INVOCATION, attempt, python, timed_once, until
from workers import device_users, fitness, gpu_users, measuring, process_trees, sampling
from workers.artifacts import ArtifactStore
from workers.gpu_listing import Gpu, Listing
from workers.gpu_users import GpuUser, drm_bytes, kfd_nodes, kfd_users
from workers.processes import Cancellation
from workers.run_task import run
from workers.strangers import NOT_SEEN, Stranger, Strangers

GPUS = {
    "mi300x": ("rocm-smi", Device("mi300x", 1, "0x00000000000000a1")),
    "h100": ("nvidia-smi", Device("h100", 1, "GPU-a1")),
}
NAMES = {"mi300x": "AMD Instinct MI300X OAM", "h100": "NVIDIA H100 80GB HBM3"}
CARD = 1
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


@pytest.fixture(autouse=True)
def machines_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins call processes what they are called here, wherever that is."""
    monkeypatch.setattr(device_users, "MACHINES_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)


@pytest.fixture
def in_a_container(machines_numbers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the drivers call processes is another number here."""
    monkeypatch.setattr(device_users, "MACHINES_NAMESPACE", 0)


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelBooks:
    found = KernelBooks(tmp_path / "sys")
    monkeypatch.setattr(gpu_users, "SYS", found.sys)
    return found


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def process(processes: ExitStack) -> int:
    """A child of the tests: of no attempt, unless its parent is taken for a guard."""
    child = processes.enter_context(subprocess.Popen([sys.executable, "-IS", "-c", WAIT], stdin=subprocess.PIPE))
    processes.callback(child.kill)
    until(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes(), "the kernel has set it up")
    return child.pid


def ended() -> int:
    """The number of a process that is no more."""
    with subprocess.Popen(["/bin/true"]) as child:
        child.wait()
    return child.pid


def on(device: Device) -> Attempt:
    return attempt(devices=(device,))


def seen(
    found: Strangers, *told: GpuUser, at_s: float = 0.0, guard: int | None = None, used: int = 0
) -> list[Stranger]:
    """One look at a GPU; of NVIDIA's a tool has told."""
    gpus = {NVIDIA: Gpu(CARD, "", used_bytes=used, users=told)} if told or used else {}
    return [one for on_it in found.look(at_s, guard, gpus).values() for one in on_it]


@pytest.mark.parametrize("kind", GPUS)
def test_a_stranger_in_the_middle_of_a_benchmark_disturbs_it_and_it_is_run_again(
    kind: str, books: KernelBooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: ExitStack
) -> None:
    """Before and after it nobody else is there; its own processes hold memory all the time."""
    tool, device = GPUS[kind]
    drivers = Drivers(tmp_path / "tools", tool, name=NAMES[kind])
    monkeypatch.setenv("PATH", drivers.environment()["PATH"])
    monkeypatch.setattr(sampling, "EVERY_S", 0.02)
    monkeypatch.setattr(sampling, "MOST_COST", 1.0)
    runs: list[sampling.Sampling] = []

    class Noted(sampling.Sampling):
        def __enter__(self) -> "Noted":
            runs.append(self)
            super().__enter__()
            return self

    def is_looked_at(strangers: int) -> bool:
        looks = [one.strangers[device] for one in runs[0].samples if device in one.strangers]
        return bool(looks) and len(looks[-1]) == strangers

    def give(pid: int, held_bytes: int) -> None:
        drivers.give(CARD, pid, held_bytes)
        books.give(CARD, pid, held_bytes)

    monkeypatch.setattr(measuring, "Sampling", Noted)
    told, go = tmp_path / "told", tmp_path / "go"
    given = replace(
        attempt(python(MEASURED, str(told), str(go)), python(""), devices=(device,)),
        stage="benchmark",
        settings=timed_once(kind, reruns=2),
    )
    stranger, store = process(processes), ArtifactStore(tmp_path / "artifacts")
    with ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        stack.callback(go.touch)
        running = threads.submit(run, given, tmp_path, store, Toolchain("default", {}), Cancellation())
        until(told.exists, "it runs")
        for own in told.read_text().strip("[]").split(","):
            give(int(own), 60 * GIB)
        until(lambda: is_looked_at(0), "it was alone")
        give(stranger, 12 * GIB)
        until(lambda: is_looked_at(1), "the stranger was seen")
        drivers.take(CARD, stranger)
        books.take(stranger)
        until(lambda: is_looked_at(0), "it was alone again")
    result = running.result()
    assert (result.failure, result.warnings, result.unfit) == (None, (), ())
    assert len(runs) == 2
    context = next(one.context for one in result.measurements if one.metric == "ttft_ms")
    assert "disturbed" not in context
    (earlier,) = context["disturbed_runs"]
    assert earlier["disturbed"].startswith(f"{kind}:1: in use by pid {stranger} (")
    assert " with 12.0 GiB for " in earlier["disturbed"]
    assert earlier["samples"] == [2.0]
    (about,) = context["machine"]["devices"]
    assert "strangers" not in about


def test_whoever_holds_memory_or_computes_is_a_stranger_and_a_monitor_is_none(
    books: KernelBooks, processes: ExitStack
) -> None:
    holds, computes, monitors, elsewhere = (process(processes) for _ in range(4))
    books.give(CARD, holds, 2 * GIB, compute_units=304)
    books.give(CARD, computes, 8192, compute_units=16)
    books.give(CARD, monitors, 0)
    books.give(CARD, elsewhere, 30 * MIB)  # a HIP program on the other card
    books.give(1 - CARD, elsewhere, 100 * GIB)
    found = seen(Strangers(on(AMD)))
    assert {(one.pid, one.held_bytes) for one in found} == {(holds, 2 * GIB), (computes, 8192)}
    assert found[0].who.startswith(f"pid {found[0].pid} ({Path(sys.executable).name[:15]}")
    told = kfd_users([books.gpu_id(CARD), books.gpu_id(1 - CARD)]) or {}
    assert [sum(user.is_on_it for user in users) for users in told.values()] == [2, 1]


def test_all_contexts_of_a_process_count(books: KernelBooks, processes: ExitStack) -> None:
    holds = process(processes)
    books.give(CARD, holds, 40 * MIB)
    assert seen(Strangers(on(AMD))) == []
    more = books.kfd / "proc" / str(holds) / "context_1"
    more.mkdir()
    (more / f"vram_{books.gpu_id(CARD)}").write_text(f"{40 * MIB}\n")
    assert [one.held_bytes for one in seen(Strangers(on(AMD)))] == [80 * MIB]


def test_processes_below_the_guard_are_no_strangers(books: KernelBooks, processes: ExitStack) -> None:
    for _ in range(2):
        books.give(CARD, process(processes), 90 * GIB)
    strangers = Strangers(on(AMD))
    assert seen(strangers, guard=os.getpid()) == []
    assert len(seen(strangers)) == 2  # without that they would be


def test_an_attempts_own_mark_is_enough(books: KernelBooks, processes: ExitStack) -> None:
    given = on(AMD)
    command = [sys.executable, "-IS", "-c", WAIT]
    child = processes.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, env={"HALOCTL_ATTEMPT": given.id}))
    processes.callback(child.kill)
    until(lambda: device_users.attempt_of(child.pid), "the kernel has set it up")
    books.give(CARD, child.pid, GIB)
    assert seen(Strangers(given)) == []


def test_what_vanished_or_can_not_be_read_is_no_stranger(books: KernelBooks, processes: ExitStack) -> None:
    strangers, gone = Strangers(on(AMD)), ended()
    books.give(CARD, gone, 100 * GIB)
    assert seen(strangers) == []
    assert process_trees.is_in_tree(gone, os.getpid())  # it can't be told any more
    books.take(gone)
    (books.kfd / "proc" / str(gone)).mkdir()  # listed, and gone when it is read
    odd = books.kfd / "proc" / str(process(processes)) / f"vram_{books.gpu_id(CARD)}"
    odd.mkdir(parents=True)  # not to be read by anybody, not even root
    (books.kfd / "proc" / "4711").mkdir()
    (books.kfd / "proc" / "4711" / f"vram_{books.gpu_id(CARD)}").write_text("")
    assert kfd_users([books.gpu_id(CARD)]) == {books.gpu_id(CARD): ()}
    assert seen(strangers) == []
    holds = process(processes)
    books.give(CARD, holds, GIB)
    assert [one.pid for one in seen(strangers)] == [holds]


def test_a_machine_without_the_drivers_books_tells_of_nobody(tmp_path: Path) -> None:
    assert kfd_nodes(tmp_path) == []
    assert kfd_users([41463], tmp_path) is None
    assert seen(Strangers(on(AMD), tmp_path)) == []


def test_gpus_are_found_by_serial_and_else_in_the_order_of_hip(books: KernelBooks, processes: ExitStack) -> None:
    holds = process(processes)
    books.give(0, holds, GIB)
    assert [one.pid for one in seen(Strangers(on(Device("mi300x", 1, "0x00000000000000a0"))))] == [holds]
    assert seen(Strangers(on(Device("mi300x", 0, "0x00000000000000ff")))) == []  # another card came in its place
    for node in (books.kfd / "topology/nodes").glob("[12]"):
        (node / "properties").write_text("unique_id 0\ndrm_render_minor 128\n")
    assert [one.pid for one in seen(Strangers(on(Device("mi300x", 0))))] == [holds]


class InContainer:
    """A made /proc in which a process of this machine has a render node open."""

    def __init__(self, proc: Path, pid: int) -> None:
        self.folder = proc / str(pid)
        for name in ("fd", "fdinfo"):
            (self.folder / name).mkdir(parents=True)

    def hold(self, held: str, render_minor: int = 136, file: int = 7, client: int = 42) -> None:
        link = self.folder / "fd" / str(file)
        link.unlink(missing_ok=True)
        link.symlink_to(f"/dev/dri/renderD{render_minor}")
        text = f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t0000:c5:00.0\n{held}\n"
        (self.folder / "fdinfo" / str(file)).write_text(text)


@pytest.mark.usefixtures("in_a_container")
def test_in_a_container_memory_tells_of_strangers_who_are_not_seen(
    books: KernelBooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: ExitStack
) -> None:
    """The kernel lists its own numbers: 400001 is the attempt's process, 400002 is none of it."""
    own, strangers = process(processes), Strangers(on(AMD))
    inside = InContainer(tmp_path / "proc", own)
    monkeypatch.setattr(gpu_users, "PROC", tmp_path / "proc")
    assert seen(strangers, at_s=0, guard=own) == []  # nobody
    books.give(CARD, 400001, 60 * GIB)
    inside.hold(f"drm-memory-vram:\t{60 << 20} KiB")
    assert [seen(strangers, at_s=at_s, guard=own) for at_s in (1, 2, 3)] == [[]] * 3
    books.give(CARD, 400002, 12 * GIB)
    assert seen(strangers, at_s=4, guard=own) == []  # the files were not read at the same moment
    assert seen(strangers, at_s=5, guard=own) == [Stranger(NOT_SEEN, None, 12 * GIB)]
    books.take(400002)
    assert seen(strangers, at_s=6, guard=own) == []
    inside.hold("drm-total-vram:\t1")  # does not tell what it holds: nothing can be said
    assert [seen(strangers, at_s=at_s, guard=own) for at_s in (30, 31)] == [[]] * 2


@pytest.mark.usefixtures("in_a_container")
def test_in_a_container_the_numbers_of_older_nvidia_drivers_accuse_nobody(processes: ExitStack) -> None:
    strangers, own = Strangers(on(NVIDIA)), process(processes)
    users = [GpuUser(400001, "python3", 60 * GIB), GpuUser(own, "python3", 9 * GIB)]
    for at_s in range(3):
        assert seen(strangers, *users, at_s=at_s, guard=own, used=70 * GIB) == []


@pytest.mark.usefixtures("in_a_container")
def test_in_a_container_newer_nvidia_drivers_tell_what_is_in_use_beside_ones_own(
    monkeypatch: pytest.MonkeyPatch, processes: ExitStack
) -> None:
    """A process is believed to be meant where it has the driver open: here any file will do."""
    monkeypatch.setitem(device_users.COMPUTE_FILES, "nvidia", re.compile("pipe:.*"))
    strangers, own = Strangers(on(NVIDIA)), process(processes)
    user = GpuUser(own, "python3", 60 * GIB)
    assert [seen(strangers, user, at_s=at_s, guard=own, used=61 * GIB) for at_s in (0, 1)] == [[]] * 2
    found = [seen(strangers, user, at_s=at_s, guard=own, used=71 * GIB) for at_s in (2, 3)]
    assert found == [[], [Stranger(NOT_SEEN, None, 10 * GIB)]]


def test_what_processes_tell_of_their_own_memory_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_users, "PROC", tmp_path)
    first, second = InContainer(tmp_path, 11), InContainer(tmp_path, 12)
    first.hold("drm-memory-vram:\t4 MiB\ndrm-resident-vram:\t4 MiB")
    first.hold("drm-memory-vram:\t4 MiB", file=8)  # the same client, through another file
    first.hold("drm-memory-vram:\t900 MiB", render_minor=128, file=9, client=43)  # another card
    second.hold("drm-memory-vram:\t2048 KiB", client=44)
    assert drm_bytes([11, 12, 13], 136) == 6 * MIB
    (second.folder / "fdinfo" / "7").unlink()  # it lives, and may not be looked at
    assert drm_bytes([11, 12], 136) is None
    assert drm_bytes([], 136) == 0


def test_one_rule_says_who_is_on_a_gpu_before_after_and_meanwhile(books: KernelBooks, processes: ExitStack) -> None:
    holds = process(processes)
    books.give(CARD, holds, 65 * MIB)
    books.give(CARD, process(processes), 63 * MIB)
    users = (kfd_users([books.gpu_id(CARD)]) or {})[books.gpu_id(CARD)]
    listing = Listing("amd", "rocm-smi", (Gpu(CARD, NAMES["mi300x"], used_bytes=IDLE_BYTES, users=users),))
    (trouble,) = fitness.troubles([replace(AMD, serial="")], listing)
    assert trouble.reason.startswith(f"in use by pid {holds} ")
    assert ", pid" not in trouble.reason
    assert [one.pid for one in seen(Strangers(on(AMD)))] == [holds]


def test_a_sampled_attempt_without_gpus_has_no_strangers() -> None:
    with sampling.Sampling(attempt(python(FINITE_INVOCATION)), every_s=0.01) as found:
        until(lambda: found.samples, "a look was taken")
    assert found.samples[0].strangers == {}
