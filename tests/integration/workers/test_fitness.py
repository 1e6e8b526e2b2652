"""GPUs looked at before and after attempts: agents, processes and tools are real, the drivers are stand-ins."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from jobs.state import FailureKind
from jobs.task import Attempt, Command, Device, TaskResult
from jobs.toolchains import Toolchain
from tests.gpu_drivers import GIB, HOLD, MIB, Drivers
from tests.integration.attempts import DEADLINE_S, FINITE_INVOCATION, living, make_attempt, python, timed_once, until
from workers.agent.agent import Agent
from workers.agent.protocol import AgentConfig, LaunchRequest
from workers.artifacts import ArtifactStore
from workers.attempts.run_task import run
from workers.machine import fitness
from workers.machine.devices import NodeDescription
from workers.measurement.measuring import Measure, run_measured
from workers.measurement.sampling import Sampler
from workers.processes import attempt_processes
from workers.processes.cancellation import Cancellation

TOOLS = {"mi300x": "rocm-smi", "h100": "nvidia-smi"}
NAMES = {"mi300x": "AMD Instinct MI300X OAM", "h100": "NVIDIA H100 80GB HBM3"}
WAIT = "import sys, time\nfor _ in range(60000): time.sleep(0.01)"
TERM = 1


@pytest.fixture(params=TOOLS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each vendor's GPUs."""
    return str(request.param)


@pytest.fixture
def drivers(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Drivers:
    return installed(tmp_path, kind, monkeypatch)


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drivers:
    return installed(tmp_path, "mi300x", monkeypatch)


def installed(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Drivers:
    drivers = Drivers(tmp_path / "tools", TOOLS[kind], name=NAMES[kind])
    monkeypatch.setenv("PATH", drivers.environment()["PATH"])
    monkeypatch.setitem(sys.modules, "pynvml", None)  # else it is asked before nvidia-smi
    return drivers


@pytest.fixture
def others() -> Iterator[ExitStack]:
    """Processes that are none of ours; ended with the test."""
    with ExitStack() as stack:
        yield stack


def other(others: ExitStack, code: str = WAIT, **variables: str) -> "subprocess.Popen[bytes]":
    """A process of somebody else's."""
    process = subprocess.Popen([sys.executable, "-IS", "-c", code], env=variables)
    others.callback(process.wait)
    others.callback(process.kill)
    until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes(), "the kernel has set it up")
    return process


def on_gpu(kind: str, *commands: Command, index: int = 0, serial: str = "") -> Attempt:
    return make_attempt(*(commands or (python(FINITE_INVOCATION),)), devices=(Device(kind, index, serial),))


def holding(drivers: Drivers, card: int, held_bytes: int, *more: str) -> Command:
    """A stage that holds a card's memory while it runs."""
    return python(HOLD + FINITE_INVOCATION + "\n".join(more), str(drivers.file), str(card), str(held_bytes))


def carried_out(
    data: Path, attempt: Attempt, cancellation: Cancellation | None = None, measure: Measure = run_measured
) -> TaskResult:
    store = ArtifactStore(data / "artifacts")
    return run(attempt, data, store, Toolchain("default", {}), cancellation or Cancellation(), measure=measure)


def message(result: TaskResult) -> str:
    assert result.failure
    assert result.failure.kind is FailureKind.NODE_UNFIT
    assert result.processes == ()
    return result.failure.message


def test_an_attempt_on_a_fit_gpu_runs_and_leaves_it_fit(drivers: Drivers, kind: str, tmp_path: Path) -> None:
    result = carried_out(tmp_path, on_gpu(kind, holding(drivers, 0, 60 * GIB)))
    assert (result.failure, result.unfit) == (None, ())
    assert drivers.read()[0].held  # it was there


def test_a_gpu_that_somebody_else_uses_is_unfit_and_nothing_runs_on_it(
    drivers: Drivers, kind: str, tmp_path: Path, others: ExitStack
) -> None:
    agent = Agent(AgentConfig("n1", tmp_path))
    foreign = other(others)
    drivers.give(1, foreign.pid, 12 * GIB)
    attempt = on_gpu(kind, index=1)
    agent.start(TERM, [LaunchRequest(attempt)])
    (result,) = agent.poll(TERM, wait_s=DEADLINE_S).results
    assert agent.stop(TERM, DEADLINE_S)
    (unfit,) = result.unfit
    assert (unfit.node, unfit.kind, unfit.index) == (attempt.places[0].node, kind, 1)
    assert f"pid {foreign.pid} ({Path(sys.executable).name}, user " in message(result)
    assert "12.0 GiB" in message(result)
    assert message(result).startswith(f"{kind}:1: before {attempt.id}: ")
    assert foreign.poll() is None


def test_a_gpu_is_no_worse_for_what_others_do_on_another_one(
    drivers: Drivers, kind: str, tmp_path: Path, others: ExitStack
) -> None:
    drivers.give(1, other(others).pid, 12 * GIB)
    assert carried_out(tmp_path, on_gpu(kind)).failure is None


def test_what_an_earlier_attempt_left_is_ended_first(
    drivers: Drivers, kind: str, tmp_path: Path, others: ExitStack
) -> None:
    leftover = other(others, HALOCTL_ATTEMPT="0123abcd-99-1")
    drivers.give(0, leftover.pid, 160 * GIB)
    result = carried_out(tmp_path, on_gpu(kind))
    assert (result.failure, result.unfit) == (None, ())
    assert leftover.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_running_attempt_is_no_leftover(amd: Drivers, tmp_path: Path, others: ExitStack) -> None:
    marker, cancellation = uuid4().hex, Cancellation()
    running = threading.Thread(target=carried_out, args=(tmp_path, make_attempt(python(WAIT, marker)), cancellation))
    others.callback(running.join)
    others.callback(cancellation.cancel)
    running.start()
    until(lambda: living(marker), "the attempt runs")
    amd.give(0, other(others).pid, 12 * GIB)
    assert carried_out(tmp_path, on_gpu("mi300x")).unfit
    attempt_processes.kill_leftovers()
    assert living(marker)


def test_memory_that_nobody_admits_to_makes_a_gpu_unfit(amd: Drivers) -> None:
    amd.cards[0].idle_bytes = 3 * GIB
    amd.write()
    (unfit,) = fitness.check_before(on_gpu("mi300x"), Cancellation(), settle_s=0.5)
    assert "3.0 GiB in use, held by no reported process" in unfit.reason


def test_memory_that_comes_back_in_time_is_waited_for(amd: Drivers) -> None:
    amd.slow_polls = 3
    amd.write()
    assert fitness.check_before(on_gpu("mi300x"), Cancellation(), settle_s=DEADLINE_S) == ()
    amd.slow_polls = 3
    amd.write()
    assert fitness.check_after(on_gpu("mi300x"), DEADLINE_S) == ()


def test_a_gpu_that_the_driver_lost_is_unfit(drivers: Drivers, kind: str, tmp_path: Path) -> None:
    drivers.cards.pop()
    drivers.write()
    assert "no longer lists it" in message(carried_out(tmp_path, on_gpu(kind, index=1)))


def test_another_card_in_a_gpus_place_is_unfit(drivers: Drivers, kind: str, tmp_path: Path) -> None:
    result = carried_out(tmp_path, on_gpu(kind, serial="0x00000000000000ff"))
    assert "another card is in its place" in message(result)


def test_a_node_whose_tool_fails_is_unfit_as_a_whole(drivers: Drivers, kind: str) -> None:
    with drivers.silent(fails="the driver is gone"):
        (unfit,) = fitness.check_before(on_gpu(kind), Cancellation(), settle_s=0.5)
    assert unfit.kind == ""
    assert "the driver is gone" in fitness.describe(unfit)


def test_a_tool_that_hangs_holds_an_attempt_up_for_so_long_and_no_longer(amd: Drivers) -> None:
    with amd.silent(hangs=True):
        (unfit,) = fitness.check_before(on_gpu("mi300x"), Cancellation(), settle_s=0.5, tool_timeout_s=0.3)
    assert "rocm-smi did not answer within 0.3 s" in unfit.reason
    until(lambda: not living(str(amd.folder / "rocm-smi")), "no tool is left")


def test_a_cancelled_attempt_does_not_wait_for_a_gpu(amd: Drivers, tmp_path: Path) -> None:
    amd.cards[0].idle_bytes = 3 * GIB
    amd.write()
    cancellation = Cancellation()
    cancellation.cancel()
    result = carried_out(tmp_path, on_gpu("mi300x"), cancellation)
    assert result.failure
    assert result.failure.kind is FailureKind.CANCELLED


def test_a_gpu_that_somebody_came_to_use_meanwhile_is_told_of_beside_the_result(
    drivers: Drivers, kind: str, tmp_path: Path, others: ExitStack
) -> None:
    foreign = other(others)
    give = f"import sys\nsys.argv[3] = '{5 * GIB}'\nimport os\nos.getpid = lambda: {foreign.pid}\n"
    intruding = python(give + HOLD + FINITE_INVOCATION, str(drivers.file), "0", "0")
    result = carried_out(tmp_path, on_gpu(kind, intruding))
    assert result.failure is None
    assert result.measurements
    (unfit,) = result.unfit
    assert (unfit.kind, unfit.index) == (kind, 0)
    assert f"pid {foreign.pid}" in unfit.reason
    assert any(f"pid {foreign.pid}" in warning for warning in result.warnings)


def test_memory_that_does_not_come_back_makes_a_gpu_unfit_after_its_attempt(amd: Drivers) -> None:
    amd.cards[1].idle_bytes = 168 * GIB
    amd.write()
    (unfit,) = fitness.check_after(on_gpu("mi300x", index=1), settle_s=0.3)
    assert (unfit.kind, unfit.index) == ("mi300x", 1)
    assert "168.0 GiB in use" in unfit.reason


def test_amds_library_names_who_is_on_which_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: ExitStack
) -> None:
    library = Drivers(tmp_path / "library", "amdsmi")
    monkeypatch.syspath_prepend(library.folder)
    monkeypatch.setenv("PYTHONPATH", str(library.folder))
    foreign = other(others)
    library.give(1, foreign.pid, 300 * MIB)  # less than what counts without a name
    assert f"in use by pid {foreign.pid}" in message(carried_out(tmp_path, on_gpu("mi300x", index=1)))
    assert carried_out(tmp_path, on_gpu("mi300x", index=0)).failure is None


def test_processes_of_an_attempt_see_their_own_gpus_and_no_other_mask(
    drivers: Drivers, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mask in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        monkeypatch.setenv(mask, "7")
    tell = "import json, os; json.dump({n: v for n, v in os.environ.items()}, open(os.environ['TOLD'], 'w'))"
    report = tmp_path / "report.json"
    attempt = make_attempt(
        Command(("python", "-c", tell + FINITE_INVOCATION), {"TOLD": str(report)}),
        devices=(Device(kind, 0), Device(kind, 1)),
    )
    assert carried_out(tmp_path, attempt).failure is None
    variables = json.loads(report.read_text())
    masks = {name: value for name, value in variables.items() if "VISIBLE_DEVICES" in name or "ORDINAL" in name}
    assert masks == {{"mi300x": "HIP_VISIBLE_DEVICES", "h100": "CUDA_VISIBLE_DEVICES"}[kind]: "0,1"}
    expected = {"mi300x": ("HIP_FORCE_DEV_KERNARG", "1"), "h100": ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")}[kind]
    assert expected in variables.items()


def test_an_attempt_without_gpus_pays_nothing(amd: Drivers) -> None:
    attempt, cancellation = make_attempt(devices=(Device("cpu", 0),)), Cancellation()
    with amd.silent(hangs=True):
        began_s = time.thread_time()  # what this thread computed, whatever else the machine is busy with
        for _ in range(100):
            assert fitness.check_before(attempt, cancellation) == fitness.check_after(attempt) == ()
        assert (time.thread_time() - began_s) / 100 < 0.001


def test_an_agent_tells_of_its_node_again_when_that_has_changed(amd: Drivers, tmp_path: Path) -> None:
    agent = Agent(AgentConfig("n1", tmp_path, address="10.0.0.1"), partial(NodeDescription, refresh_s=0.0))
    assert agent.accept_leader(TERM, {}).node.count("mi300x") == 2
    amd.cards.pop()
    amd.write()
    until(lambda: (node := agent.poll(TERM).node) and node.count("mi300x") == 1, "the lost GPU is told of")
    node = agent.accept_leader(TERM, {}).node
    assert (node.address, node.count("mi300x")) == ("10.0.0.1", 1)
    assert agent.poll(TERM).node is None
    assert agent.stop(TERM, DEADLINE_S)
    until(
        lambda: not any(thread.name == "describe node" for thread in threading.enumerate()), "it is not being renewed"
    )


CAPPED = """
import json, os, sys
with open(sys.argv[1]) as file:
    state = json.load(file)
state["cards"][0].update(power_cap_w=500, thermal_throttle_us=10**9)
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(state, file)
os.replace(sys.argv[1] + ".part", sys.argv[1])
run = {"run_type": "iteration", "repetition_index": 0, "real_time": 2.0, "time_unit": "ms"}
for name in ("prefill_bs1_t8", "decode_bs1_t8"):
    json.dump({"benchmarks": [run]}, open(f"outputs/{name}.json", "w"))
"""


#: Is a benchmark under which a GPU gets hot and is capped, and which ends well: arguments are cards.json, and a file
#: that grows whenever a driver is asked. In its second run nothing happens.
HOT_MEANWHILE = """
import json, os, sys, time
CARDS, ASKED = sys.argv[1:]
def become(**facts):
    with open(CARDS) as file:
        state = json.load(file)
    state["cards"][0].update(facts)
    with open(CARDS + ".part", "w") as file:
        json.dump(state, file)
    os.replace(CARDS + ".part", CARDS)
def be_looked_at(times=3):  # one question may be under way, and NVIDIA's tool is asked another one for the same
    enough = os.path.getsize(ASKED) + times
    while os.path.getsize(ASKED) < enough:
        time.sleep(0.01)
be_looked_at()
if not os.path.exists(CARDS + ".was"):
    open(CARDS + ".was", "w").close()
    become(temperature_c=96, power_cap_w=300)
    be_looked_at()
    become(temperature_c=31, power_cap_w=700)
run = {"run_type": "iteration", "repetition_index": 0, "real_time": 2.0, "time_unit": "ms"}
for name in ("prefill_bs1_t8", "decode_bs1_t8"):
    json.dump({"benchmarks": [run]}, open(f"outputs/{name}.json", "w"))
"""


def test_what_a_gpu_goes_through_while_it_is_measured_is_seen(drivers: Drivers, kind: str, tmp_path: Path) -> None:
    """By the driver's own tool, asked from beside the measured process; before and after it all is well."""
    sample_often = partial(run_measured, create_sampler=partial(Sampler, interval_s=0.01, max_cpu_share=1.0))
    attempt = replace(
        on_gpu(kind, python(HOT_MEANWHILE, str(drivers.file), str(drivers.asked)), python("")),
        stage="benchmark",
        settings=timed_once(kind, reruns=0),
    )
    for is_first in (True, False):
        result = carried_out(tmp_path, replace(attempt, id=f"{attempt.id}{int(is_first)}"), measure=sample_often)
        assert result.failure is None
        context = next(measurement.context for measurement in result.measurements if measurement.metric == "ttft_ms")
        (device,) = context["machine"]["devices"]
        highest = 96 if is_first else 31
        assert (device["before"]["temperature_c"], device["after"]["temperature_c"]) == (31, 31)
        assert device["during"]["temperature_c"] == [31, highest]
        assert device["during"]["mhz"] == [345, 345]
        assert context["machine"]["samples"] >= 2
        disturbance = f"{kind}:0: power_cap_w changed from 700 to 300"
        assert context.get("disturbed", "") == (disturbance if is_first else "")


def test_a_benchmark_tells_of_its_gpus_clocks_power_and_heat_and_is_run_again_when_they_change(
    drivers: Drivers, kind: str, tmp_path: Path
) -> None:
    """The cap falls under the first run and is the same before and after the second one, as is what heat there was."""
    commands = (python(CAPPED, str(drivers.file)), python(""))
    attempt = replace(
        on_gpu(kind, *commands, serial="GPU-a0" if kind == "h100" else "0x00000000000000a0"),
        stage="benchmark",
        settings=timed_once(kind, reruns=2),
    )
    result = carried_out(tmp_path, attempt)
    assert (result.failure, result.warnings) == (None, ())
    context = next(measurement.context for measurement in result.measurements if measurement.metric == "ttft_ms")
    (earlier,) = context["disturbed_runs"]
    assert f"{kind}:0: power_cap_w changed from 700 to 500" in earlier["disturbed"]
    assert ("thermal throttling" in earlier["disturbed"]) == (kind == "h100")  # rocm-smi does not tell
    (device,) = context["machine"]["devices"]
    assert (device["kind"], device["serial"]) == (kind, attempt.devices[0].serial)
    expected = {"mhz": 345, "memory_mhz": 2619, "power_cap_w": 500, "temperature_c": 31}
    assert expected.items() <= device["after"].items()
    assert context["machine"]["drivers"][f"{'nvidia' if kind == 'h100' else 'amd'}_driver"]
