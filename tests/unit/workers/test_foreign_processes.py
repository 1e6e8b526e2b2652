"""Foreign GPU processes: for how long they were seen, unattributed memory, and how both are reported."""

from dataclasses import replace

from jobs.task import Device
from workers.machine.gpu_listing import Gpu, GpuListing
from workers.machine.gpu_processes import GpuProcess
from workers.measurement.disturbances import MeasurementInterval
from workers.measurement.foreign_processes import INVISIBLE_PROCESS, ForeignProcess, UnattributedMemory, foreign_usage
from workers.measurement.host_samples import HostSample, HostSnapshot

GIB = 1 << 30
GPU = Device("mi300x", 0, "0xa0")
BOB = ForeignProcess("pid 4711 (python3, user bob)", 4711, 2 * GIB)
EVE = ForeignProcess("pid 4712 (python3, user eve)", 4712, GIB)


def test_each_poll_stands_for_the_time_since_the_one_before() -> None:
    polls = [(11.0, [BOB]), (12.5, [replace(BOB, held_bytes=12 * GIB), EVE]), (13.5, []), (15.0, [BOB])]
    first, second = foreign_usage(10.0, polls)
    assert (first.process.held_bytes, first.seen_s) == (12 * GIB, 4.0)
    assert (second.process, second.seen_s) == (EVE, 1.5)
    assert foreign_usage(10.0, [(11.0, [])]) == []
    assert str(first) == "pid 4711 (python3, user bob) with 12.0 GiB for 4 s"
    assert first.as_context() == {"who": BOB.who, "pid": 4711, "held_bytes": 12 * GIB, "seen_s": 4.0}
    (unseen,) = foreign_usage(0.0, [(1.0, [ForeignProcess(INVISIBLE_PROCESS, None, GIB)])])
    assert unseen.as_context() == {"who": INVISIBLE_PROCESS, "held_bytes": GIB, "seen_s": 1.0}


def sampled(*polls: tuple[ForeignProcess, ...] | None) -> list[HostSample]:
    """A sample each second; None: processes were not reported."""
    return [
        HostSample(float(second), 0.0, None, foreign_processes={} if processes is None else {GPU: processes})
        for second, processes in enumerate(polls, start=1)
    ]


def between(*polls: tuple[ForeignProcess, ...] | None, at_the_end: tuple[GpuProcess, ...] = ()) -> MeasurementInterval:
    before = HostSnapshot(at_s=0.0, cpus=4, busy_s=0.0, readings={GPU: {}})
    listing = GpuListing("amd", "amdsmi", (Gpu(0, "AMD Instinct MI300X", "0xa0", processes=at_the_end),))
    return MeasurementInterval(before, replace(before, at_s=60.0, listings=(listing,)), 0.0, sampled(*polls))


def test_a_foreign_process_in_the_middle_disturbs_and_is_reported_with_how_long_it_stayed() -> None:
    interval = between((), (BOB,), None, (BOB,), ())
    assert list(interval.disturbances(10.0)) == [f"mi300x:0: in use by {BOB.who} with 2.0 GiB for 3 s"]
    (device,) = interval.as_context("n1")["devices"]
    assert device["foreign_processes"] == [{"who": BOB.who, "pid": 4711, "held_bytes": 2 * GIB, "seen_s": 3.0}]
    undisturbed = between((), None, ())
    assert list(undisturbed.disturbances(10.0)) == []
    assert "foreign_processes" not in undisturbed.as_context("n1")["devices"][0]


def test_a_foreign_process_that_stays_is_reported_once() -> None:
    reported = list(between((BOB,), (BOB,), at_the_end=(GpuProcess(1, "init", GIB),)).disturbances(10.0))
    assert len(reported) == 1
    (late,) = between((), at_the_end=(GpuProcess(1, "init", GIB),)).disturbances(10.0)
    assert late.startswith("mi300x:0: in use by pid 1 ")  # it came between the last sample and the end


def grown(*polls: tuple[float, int, int]) -> list[int]:
    """By second, GiB in use and GiB of one's own: by how much the rest has grown."""
    memory = UnattributedMemory()
    return [memory.record(at_s, used_gib * GIB, own_gib * GIB) // GIB for at_s, used_gib, own_gib in polls]


def test_unattributed_memory_that_stays_shows_a_foreign_process() -> None:
    assert grown((0, 0, 0), (1, 60, 60), (2, 72, 60), (3, 72, 60), (4, 60, 60)) == [0, 0, 0, 12, 0]
    assert grown((0, 3, 0), (1, 63, 60), (2, 63, 60)) == [0, 0, 0]  # in use before, by a driver say
    assert grown((0, 0, 0), (1, 61, 60), (2, 61, 60)) == [0, 0, 0]  # what drivers add
    assert grown((0, 0, 0), (1, 70, 60), (2, 60, 60), (3, 70, 60)) == [0, 0, 0, 0]  # read a moment apart


def test_the_memory_of_what_has_ended_is_its_own_until_it_is_back() -> None:
    assert grown((0, 0, 0), (1, 60, 60), (2, 60, 0), (3, 30, 0), (10, 1, 0), (30, 0, 0)) == [0] * 6
    assert grown((0, 0, 0), (1, 60, 60), (2, 0, 0), (30, 9, 0), (31, 9, 0)) == [0, 0, 0, 0, 9]
