"""What a machine tells around a measurement, and what of it is a disturbance: recorded texts, no machine."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import BadSetting
from jobs.state import Failure, FailureKind
from jobs.task import Device, Measurement, Outcome, Process
from tests.integration.attempts import make_attempt
from workers.machine.amd_gpus import parse_amdsmi, parse_rocm_smi
from workers.machine.devices import FOREIGN_VARIABLE
from workers.machine.gpu_listing import Gpu, GpuListing
from workers.machine.gpu_processes import GpuProcess
from workers.machine.nvidia_gpus import SMI_QUERIES, parse_nvidia_smi
from workers.measurement import host_samples
from workers.measurement.disturbances import MeasurementInterval, extremes, max_foreign_cpu_percent
from workers.measurement.host_samples import HostSample, HostSnapshot, busy_s, cgroup_throttled_s
from workers.measurement.measuring import run_measured
from workers.processes.cancellation import Cancellation
from workers.processes.client import CommandResult, EndReason, RunResult

FILES = {
    "/proc/stat": "cpu  2146861 771725 720869 1014333 192998 0 17578 2853 0 0\n"
    "cpu0 1000 200 300 5000 400 0 50 50 70 0\ncpu1 2000 0 0 0 0 0 0 0 0 0\ncpu2 9 9 9 9 9 9 9 9 9 9\nintr 1 2\n",
    "/proc/loadavg": "4.41 3.92 3.07 2/512 4711\n",
    "/sys/fs/cgroup/cpu.stat": "usage_usec 9\nnr_throttled 2\nthrottled_usec 1500000\n",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2100000\n",
    "/sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "3700000\n",
    "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
    "/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "4\n",
}
CARD = "0, NVIDIA H200, 0, GPU-0a5ba9ad, 143771, 512, 560.35.03, Enabled, 1980, 1980, 3201"
NVIDIA = f"{CARD}, 1755, 3201, 612.40, 700.00, 71, 200, [N/A], 0, 91403239\n"
MI300X = {
    "current_gfxclks": [1900, 2100, "N/A", "N/A"],
    "current_gfxclk": "N/A",
    "current_uclk": 1300,
    "current_socket_power": 613,
    "temperature_hotspot": 72,
    "accumulation_counter": 5000,
    "prochot_residency_acc": 1,
    "socket_thm_residency_acc": 2,
    "ppt_residency_acc": 40,
}
ROCM_SMI = {
    "Card Series": "AMD Instinct MI300X OAM",
    "Temperature (Sensor junction) (C)": "41.0",
    "mclk clock speed:": "(1300Mhz)",
    "sclk clock speed:": "(132Mhz)",
    "Current Socket Graphics Package Power (W)": "142.0",
    "Max Graphics Package Power (W)": "750.0",
}
GPU = Device("mi300x", 0, "0xa0")
QUIET = HostSnapshot(at_s=0.0, cpus=4, busy_s=100.0)


def later(before: HostSnapshot, **changes: Any) -> HostSnapshot:
    """Ten seconds after it."""
    return replace(before, at_s=before.at_s + 10, **changes)


def disturbances(before: HostSnapshot, after: HostSnapshot, own_cpu_s: float = 0.0) -> list[str]:
    return list(MeasurementInterval(before, after, own_cpu_s).disturbances(10.0))


def test_the_kernel_tells_how_busy_processors_were_and_what_slowed_them(tmp_path: Path) -> None:
    for name, text in FILES.items():
        file = tmp_path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    snapshot = host_samples.take_snapshot([], tmp_path)
    assert (snapshot.load, snapshot.cpu_mhz, snapshot.cpu_thermal_throttles, snapshot.cgroup_throttled_s) == (
        (4.41, 3.92, 3.07),
        2900.0,
        7,
        1.5,
    )
    assert busy_s(FILES["/proc/stat"], {0, 1}) == (1000 + 200 + 300 + 50 + 50 + 2000) / host_samples.TICKS_PER_S
    assert host_samples.take_snapshot([], tmp_path / "nothing").cpu_thermal_throttles is None
    assert cgroup_throttled_s("usage_usec 9\n") == 0


def test_gpus_clocks_power_and_heat_are_read_whichever_tool_tells_of_them() -> None:
    counted = {"thermal_throttle_us": 200.0, "power_throttle_us": 91403239.0}
    expected = {"mhz": 1755.0, "memory_mhz": 3201.0, "power_w": 612.4, "power_cap_w": 700.0, "temperature_c": 71.0}
    processes = "GPU-0a5ba9ad, 4711, python3, 100\nGPU-b, 9, python3, 7\n"
    (by_nvidia,) = parse_nvidia_smi(NVIDIA, processes, SMI_QUERIES[0]).gpus
    assert by_nvidia.readings == {**expected, **counted}
    assert (by_nvidia.used_bytes, by_nvidia.processes) == (512 << 20, (GpuProcess(4711, "python3", 100 << 20),))
    energy = {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 7}
    (by_library,) = parse_amdsmi(json.dumps([library(metrics=MI300X, power_cap=750_000_000, energy=energy)])).gpus
    counted = {"energy_j": 30.6, "ticks": 5000.0, "thermal_throttle_ticks": 3.0, "power_throttle_ticks": 40.0}
    expected = {"mhz": 2000.0, "memory_mhz": 1300.0, "power_w": 613.0, "temperature_c": 72.0, "power_cap_w": 750.0}
    assert by_library.readings == {**expected, **counted}
    (by_tool,) = parse_rocm_smi(json.dumps({"card0": ROCM_SMI})).gpus
    expected = {"mhz": 132.0, "memory_mhz": 1300.0, "power_w": 142.0, "temperature_c": 41.0, "power_cap_w": 750.0}
    assert by_tool.readings == expected


def library(**facts: Any) -> dict[str, Any]:
    names = ("memory_bytes", "used_bytes", "performance_level", "driver", "node_id", "gpu_id", "processes")
    return {"asic": {"market_name": "AMD Instinct MI300X"}, **dict.fromkeys(names), **facts}


def test_what_others_compute_disturbs_and_what_the_measurement_computes_does_not() -> None:
    after = later(QUIET, busy_s=110.0)
    (disturbance,) = disturbances(QUIET, after)
    assert disturbance.startswith("other processes used 25% of 4 CPUs, more than 10%")
    assert disturbances(QUIET, after, own_cpu_s=9.0) == []
    (held,) = disturbances(QUIET, later(QUIET, cgroup_throttled_s=8.0))
    assert held.startswith("the container's limit throttled 20% of 4 CPUs")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            {"thermal_throttle_us": 0, "power_throttle_us": 0},
            {"thermal_throttle_us": 400_000, "power_throttle_us": 9_000_000},
            "thermal throttling for 4%",
        ),
        (
            {"thermal_throttle_ticks": 5, "ticks": 100},
            {"thermal_throttle_ticks": 55, "ticks": 1100},
            "thermal throttling for 5%",
        ),
        ({"power_cap_w": 750}, {"power_cap_w": 500}, "power_cap_w changed from 750 to 500"),
        ({"thermal_throttle_us": 0, "mhz": 132}, {"thermal_throttle_us": 50_000, "mhz": 1900}, None),
        ({}, {"thermal_throttle_us": 400_000}, None),
    ],
)
def test_heat_and_a_changed_cap_disturb_and_a_full_load_does_not(
    before: dict[str, float], after: dict[str, float], message: str | None
) -> None:
    messages = disturbances(replace(QUIET, readings={GPU: before}), later(QUIET, readings={GPU: after}))
    assert [message in text for text in messages] == [True] if message else messages == []


def test_processors_slowed_by_heat_and_others_on_the_gpu_disturb() -> None:
    held = Gpu(0, "AMD Instinct MI300X", "0xa0", processes=(GpuProcess(1, "python3", 1 << 33),))
    listing = GpuListing("amd", "rocm-smi", (held,))
    after = later(QUIET, cpu_thermal_throttles=9, readings={GPU: {}}, listings=(listing,))
    messages = disturbances(replace(QUIET, cpu_thermal_throttles=7), after)
    assert messages[0] == "thermal throttling of the CPUs, 2 times"
    assert messages[1].startswith("mi300x:0: in use by pid 1 ")


def sampled(foreign: dict[int, float], seconds: int = 60) -> list[HostSample]:
    """A sample each second of a measurement that computes on one processor, beside others in some of the seconds."""
    busy, samples = 100.0, []
    for second in range(seconds):
        busy += 1.0 + foreign.get(second, 0.0)
        samples.append(HostSample(at_s=float(second), busy_s=busy, own_cpu_s=7.0 + second))
    return samples


def in_a_minute(samples: list[HostSample], foreign_s: float = 0.0, **changes: Any) -> list[str]:
    after = replace(QUIET, at_s=60.0, busy_s=QUIET.busy_s + 60.0 + foreign_s, **changes)
    return list(MeasurementInterval(QUIET, after, 60.0, samples).disturbances(10.0))


def test_a_burst_of_others_disturbs_that_is_little_of_the_whole_time() -> None:
    burst = dict.fromkeys(range(20, 24), 3.0)
    (disturbance,) = in_a_minute(sampled(burst), foreign_s=12.0)
    assert disturbance.startswith("other processes used 60% of 4 CPUs for 5 s, more than 10%")
    spread = dict.fromkeys(range(60), 0.2)  # the same in all
    assert in_a_minute(sampled(spread), foreign_s=12.0) == []
    assert in_a_minute(sampled({20: 1.5}), foreign_s=1.5) == []  # a second of others, or a blip
    (disturbance,) = in_a_minute(sampled(burst), foreign_s=40.0)
    assert disturbance.startswith("other processes used 17% of 4 CPUs, more")  # said once


def test_processes_that_could_not_be_counted_are_no_burst() -> None:
    samples = [replace(sample, own_cpu_s=None) if second % 2 else sample for second, sample in enumerate(sampled({}))]
    assert in_a_minute(samples) == []
    assert in_a_minute([replace(sample, own_cpu_s=None) for sample in samples]) == []


def on_the_gpu(*readings: dict[str, float]) -> list[HostSample]:
    return [HostSample(10.0 * number, 0.0, None, readings={GPU: values}) for number, values in enumerate(readings)]


@pytest.mark.parametrize(
    ("meanwhile", "message"),
    [
        (
            [{"thermal_throttle_us": 0}, {"thermal_throttle_us": 500_000}, {"thermal_throttle_us": 500_000}],
            "thermal throttling for 5% of 10 s",
        ),
        (
            [{"ticks": 0, "thermal_throttle_ticks": 0}, {"ticks": 1000, "thermal_throttle_ticks": 30}],
            "thermal throttling for 3% of 10 s",
        ),
        (
            [{"is_thermal_throttled": 0}, {"is_thermal_throttled": 1}, {"is_thermal_throttled": 0}],
            "thermal throttling in 1 of 4 samples",
        ),
        ([{"power_cap_w": 700}, {"power_cap_w": 300}, {"power_cap_w": 700}], "power_cap_w changed from 700 to 300"),
        ([{"mhz": 1900}, {"mhz": 900}, {"mhz": 1900}], None),
    ],
)
def test_what_a_gpu_went_through_in_the_middle_disturbs(meanwhile: list[dict[str, float]], message: str | None) -> None:
    """A minute that begins and ends well."""
    ends = {name: meanwhile[0][name] for name in meanwhile[0]}
    after = {**ends, "ticks": 60_000.0} if "ticks" in ends else ends
    before, samples = replace(QUIET, readings={GPU: ends}), on_the_gpu(*meanwhile)
    between = MeasurementInterval(before, replace(before, at_s=60.0, readings={GPU: after}), 0.0, samples)
    messages = list(between.disturbances(10.0))
    assert [message in text for text in messages] == [True] if message else messages == []
    (device,) = between.as_context("n1")["devices"]
    name = next(iter(meanwhile[0]))
    if not name.endswith(("_us", "ticks")):
        values = [readings[name] for readings in meanwhile]
        assert device["during"] == {name: [min(values), max(values)]} == extremes(meanwhile)


def test_drivers_that_count_no_heat_say_whether_there_is_some() -> None:
    masks = ("0x0000000000000044", "0x0000000000000004", "[N/A]")
    text = "".join(f"{CARD}, 1755, 3201, 612.40, 700.00, 71, {mask}\n" for mask in masks)
    gpus = parse_nvidia_smi(text, "", SMI_QUERIES[1]).gpus
    assert [gpu.readings.get("is_thermal_throttled") for gpu in gpus] == [1.0, 0.0, None]
    bits = {1 << 36: 1.0, 1: 0.0, 0xFFFFFFFFFFFFFFFF: None, "N/A": None}
    cards = [library(metrics={"indep_throttle_status": value}) for value in bits]
    assert [gpu.readings.get("is_thermal_throttled") for gpu in parse_amdsmi(json.dumps(cards)).gpus] == [
        *bits.values()
    ]


def test_a_node_may_say_how_much_others_may_use() -> None:
    assert max_foreign_cpu_percent([Device("cpu", 0)], None) == 10
    assert max_foreign_cpu_percent([GPU], None) == 50
    assert max_foreign_cpu_percent([GPU], "2.5") == 2.5
    with pytest.raises(BadSetting, match="HALOCTL_MAX_FOREIGN_CPU_PERCENT"):
        max_foreign_cpu_percent([GPU], "little")


def looks(*foreign_s: float) -> Iterator[HostSnapshot]:
    """Before and after each run, in which others compute for so long."""
    for other_s in foreign_s:
        yield QUIET
        yield later(QUIET, busy_s=QUIET.busy_s + 8.0 + other_s)


def run_with(monkeypatch: pytest.MonkeyPatch, *foreign_s: float, reruns: int = 2, fails: bool = False) -> Outcome:
    """What comes of an attempt whose runs measure 1.0, 2.0 and so on, in 8 s of processor time each."""
    monkeypatch.setenv(FOREIGN_VARIABLE, "10")
    attempt, snapshots, number = (
        make_attempt(stage="benchmark", settings={"max_disturbed_reruns": reruns}),
        looks(*foreign_s),
        0,
    )

    def carry_out(timeout_s: float) -> tuple[RunResult, Outcome]:
        nonlocal number
        number += 1
        failure = Failure(FailureKind.TOOL_FAILED, "no use") if fails else None
        numbers = () if fails else (Measurement("itl_ms", (float(number),), {"batch": 1}),)
        ended = RunResult(EndReason.DONE, (CommandResult(Process(("tool",), 0, 1.0, 1, 8.0), 0, 0),))
        return ended, Outcome(numbers, failure=failure)

    _, outcome = run_measured(attempt, carry_out, {"torch": "2.13.0"}, Cancellation(), lambda: next(snapshots))
    assert next(snapshots, None) is None  # no more runs, and no fewer
    return outcome


def test_a_disturbed_run_is_run_again_and_never_mixed_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_with(monkeypatch, 20.0, 0.0)
    (kept,) = outcome.measurements
    assert (kept.samples, kept.context["batch"], "disturbed" in kept.context) == ((2.0,), 1, False)
    (earlier,) = kept.context["disturbed_runs"]
    assert earlier["samples"] == [1.0]
    assert earlier["disturbed"].startswith("other processes used 50%")
    assert kept.context["machine"]["versions"] == {"torch": "2.13.0"}
    assert outcome.warnings == ()


def test_what_stays_disturbed_is_kept_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_with(monkeypatch, 20.0, 20.0, 20.0)
    (kept,) = outcome.measurements
    assert (kept.samples, len(kept.context["disturbed_runs"])) == ((3.0,), 2)
    (warning,) = outcome.warnings
    assert warning == f"disturbed in 3 runs in a row: {kept.context['disturbed']}"
    assert len(run_with(monkeypatch, 20.0, reruns=0).warnings) == 1


def test_what_fails_is_not_run_again_because_it_was_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_with(monkeypatch, 20.0, fails=True).failure
