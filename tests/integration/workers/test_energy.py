"""The energy of what is measured: drivers' power under real processes, and counters of CPU packages."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from jobs.metrics import METRICS
from jobs.task import Device, Measurement, Span
from jobs.toolchains import Toolchain
from tests.gpu_drivers import Drivers
from tests.integration.attempts import make_attempt, python
from workers.artifacts import ArtifactStore
from workers.attempts.run_task import run
from workers.machine.machine_settings import Machine
from workers.machine.rapl import EnergyCounter, read_energy_counters
from workers.measurement.energy import energy_measurements, energy_series
from workers.measurement.host_samples import HostSample, HostSnapshot
from workers.measurement.measuring import run_measured
from workers.measurement.sampling import Sampler
from workers.processes.cancellation import Cancellation

#: Draws 400 W while it times two generations of 4 x 0.15 s, and 71.2 W while it loads and ends; the files that it is
#: given are cards.json and the one that grows with each question to a driver.
GENERATIONS = """
import json, os, sys, time
CARDS, ASKED = sys.argv[1:]
def draw(power_w):
    with open(CARDS) as file:
        state = json.load(file)
    for card in state["cards"]:
        card["power_w"] = power_w
    with open(CARDS + ".part", "w") as file:
        json.dump(state, file)
    os.replace(CARDS + ".part", CARDS)
def be_polled(times):
    enough = os.path.getsize(ASKED) + times
    while os.path.getsize(ASKED) < enough:
        time.sleep(0.005)
def generation(polls):
    begin_s, times_s = time.time(), [time.perf_counter()]
    for _ in range(3):
        be_polled(polls)
        times_s.append(time.perf_counter())
    ttft_ms, *steps_ms = (1e3 * (after - before) for before, after in zip(times_s, times_s[1:]))
    return {"ttft_ms": ttft_ms, "steps_ms": steps_ms, "begin_s": begin_s}
be_polled(3)
warmup = generation(1)
draw(400.0)
be_polled(3)
generations = [generation(4), generation(4)]
draw(71.2)
be_polled(3)
json.dump({"generations": [warmup, *generations]}, open("outputs/generation_bs2_t8.json", "w"))
run = {"run_type": "iteration", "repetition_index": 0, "real_time": 2.0, "time_unit": "ms"}
for name in ("prefill_bs2_t8", "decode_bs2_t8"):
    json.dump({"benchmarks": [run, {**run, "repetition_index": 1}]}, open(f"outputs/{name}.json", "w"))
"""
TIMED = {"tp": 2, "batch": [2], "prompt_tokens": [8], "new_tokens": 3, "warmup": 1, "repetitions": 1, "generations": 2}
BEFORE = HostSnapshot(at_s=0.0, cpus=4, busy_s=0.0, unix_offset_s=1000.0)


@pytest.mark.parametrize(("kind", "tool"), [("mi300x", "rocm-smi"), ("h100", "nvidia-smi")])
def test_a_generation_takes_the_power_that_its_gpus_draw_while_it_is_timed(
    kind: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"mi300x": "AMD Instinct MI300X OAM", "h100": "NVIDIA H100 80GB HBM3"}[kind]
    drivers = Drivers(tmp_path / "tools", tool, name=name)
    monkeypatch.setenv("PATH", drivers.environment()["PATH"])
    monkeypatch.setitem(sys.modules, "pynvml", None)  # else it is asked before nvidia-smi
    generations = python(GENERATIONS, str(drivers.file), str(drivers.asked))
    attempt = make_attempt(generations, python(""), python(""), devices=(Device(kind, 0), Device(kind, 1)))
    attempt = replace(attempt, stage="benchmark", settings={**TIMED, "target": kind, "max_disturbed_reruns": 0})
    store, often = ArtifactStore(tmp_path / "artifacts"), partial(Sampler, interval_s=0.01, max_cpu_share=1.0)
    measure = partial(run_measured, create_sampler=often)
    result = run(attempt, tmp_path, store, Toolchain("default", {}), Cancellation(), measure=measure)
    assert result.failure is None
    measured = {measurement.metric: measurement for measurement in result.measurements}
    e2e_s = sum(measured["e2e_ms"].samples) / 1e3
    assert measured["generation_j"].samples == pytest.approx((2 * 400.0 * e2e_s / 2,), rel=0.01)
    assert measured["output_tokens_per_j"].samples == pytest.approx((2 * 6 / (2 * 400.0 * e2e_s),), rel=0.01)
    assert measured["power_w"].samples == pytest.approx([800.0] * len(measured["power_w"].samples), rel=1e-4)
    assert measured["power_max_w"].samples == pytest.approx((800.0,))
    assert measured["generation_j"].context["energy_source"] == "power readings"
    assert "machine" in measured["generation_j"].context
    assert "prefill_j" not in measured  # a call of 2 ms is over before anybody looks
    assert [METRICS[name].is_lower_better for name in ("generation_j", "output_tokens_per_j")] == [True, False]


def zone(root: Path, name: str, label: str, energy_uj: int, *, range_uj: int = 262_143_328_850) -> None:
    folder = root / "sys/class/powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in (("name", label), ("energy_uj", str(energy_uj)), ("max_energy_range_uj", str(range_uj))):
        (folder / file).write_text(f"{text}\n")


def test_packages_and_their_memory_are_counted_and_nothing_twice(tmp_path: Path) -> None:
    for name, label in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram")):
        zone(tmp_path, name, label, 5_000_000)
    zone(tmp_path, "intel-rapl:1", "psys", 9_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:2", "package-1", 7)
    (tmp_path / "sys/class/powercap/intel-rapl:2/energy_uj").write_text("")
    counters = read_energy_counters(Machine(root=tmp_path))
    assert counters == dict.fromkeys(("intel-rapl:0", "intel-rapl:0:1"), EnergyCounter(5.0, 262143.32885))
    assert read_energy_counters(Machine(root=tmp_path / "nothing")) == {}


def counted(second: int, joules: float) -> HostSample:
    return HostSample(float(second), 0.0, None, cpu_energy={"intel-rapl:0": EnergyCounter(joules % 300.0, 300.0)})


def test_a_counter_that_begins_again_goes_on_counting() -> None:
    """60 W for 20 s, of which the calls have 10 s; the counter wraps four times."""
    samples = [counted(second, 250.0 + 60.0 * second) for second in range(20)]
    series = energy_series(BEFORE, samples, replace(BEFORE, at_s=20.0))
    timed = Measurement("itl_ms", (100.0,), {"batch": 4}, (Span(1005.0, 1015.0, 100, 400),))
    measured = {measurement.metric: measurement for measurement in energy_measurements([timed], series)}
    assert measured["decode_step_j"].samples == pytest.approx((6.0,))
    assert measured["decode_tokens_per_j"].samples == pytest.approx((4 / 6.0,))
    assert measured["power_w"].samples == pytest.approx((60.0,) * 10)
    assert measured["power_w"].context == {"batch": 4, "energy_source": "CPU packages"}


def test_calls_that_are_sampled_too_seldom_and_clocks_that_step_give_no_energy() -> None:
    samples = [counted(second, 60.0 * second) for second in range(20)]
    after = replace(BEFORE, at_s=20.0)
    short = Measurement("itl_ms", (1.0,), {}, (Span(1005.0, 1006.5, 10, 10),))
    assert list(energy_measurements([short], energy_series(BEFORE, samples, after))) == []
    long = replace(short, spans=(Span(1005.0, 1015.0, 10, 10),))
    assert list(energy_measurements([long], energy_series(BEFORE, samples, after)))
    stepped = energy_series(BEFORE, samples, replace(after, unix_offset_s=1060.0))
    assert list(energy_measurements([long], stepped)) == []
