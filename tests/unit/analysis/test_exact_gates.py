"""Gates on what follows from a program alone: each fault is planted, and nothing else fails."""

from dataclasses import replace

import pytest

from db.reads.gated_attempts import GatedAttempt
from db.reads.runs import MeasuredRun
from jobs.sections import GateSection
from jobs.state import FailureKind
from jobs.task import Measurement, TaskResult
from orchestrator.analysis.exact_gates import judge
from tests import made_runs

GATE = GateSection(metrics=["spills", "mfma", "bytes", "dispatches", "min_waves", "link_bytes"])
GOOD = {"spills": 0.0, "mfma": 96.0, "bytes": 1.5e9, "dispatches": 525.0, "min_waves": 2.0, "link_bytes": 8.6e9}
CONTEXT = {"batch": 4, "prompt_tokens": 2048}
WORKLOAD = (("batch", 4), ("prompt_tokens", 2048))
TASK = GatedAttempt("j2-03-1", "j2-03", 0, {}, "m", "m-FP16-TP2", "mi300x", {}, "n", "n", "d")


def run(metric: str, value: float, target: str = "mi300x", task: str = "j1-03") -> MeasuredRun:
    """A good run, which is newer than those made before."""
    return made_runs.run(value, metric=metric, target=target, task=task, workload=WORKLOAD)


HISTORY = [run(f"prefill_{fact}", value) for fact, value in GOOD.items()]


def result(**facts: float) -> TaskResult:
    """What `analyse` found of a prefill, where these facts are not as before."""
    values = {**GOOD, **facts}
    return TaskResult(
        "j2-03-1", 1, None, measurements=tuple(Measurement(f"prefill_{k}", (v,), CONTEXT) for k, v in values.items())
    )


@pytest.mark.parametrize(
    ("fact", "value", "message"),
    [
        ("spills", 12.0, "prefill_spills (batch 4, prompt 2048) 12 registers, where the last good has 0 registers"),
        ("mfma", 0.0, "prefill_mfma (batch 4, prompt 2048) 0 instructions, where the last good has 96 instructions"),
        ("bytes", 1.6e9, "prefill_bytes (batch 4, prompt 2048) 1.5 GiB, where the last good has 1.4 GiB"),
        ("dispatches", 526.0, "prefill_dispatches (batch 4, prompt 2048) 526 dispatches, where the last good has 525"),
        ("min_waves", 1.0, "prefill_min_waves (batch 4, prompt 2048) 1 waves, where the last good has 2 waves"),
        ("link_bytes", 9.6e9, "prefill_link_bytes (batch 4, prompt 2048) 8.9 GiB, where the last good has 8.0 GiB"),
    ],
)
def test_a_planted_fault_fails_its_gate_alone(fact: str, value: float, message: str) -> None:
    failure = judge(result(**{fact: value}), TASK, GATE, HISTORY).failure
    assert failure is not None
    assert (failure.kind, failure.message.startswith(message)) == (FailureKind.KERNELS_WORSE, True), failure.message
    assert failure.message.endswith("; `haloctl kernels j1-03 j2-03` shows the kernels")
    assert failure.message.count("prefill_") == 1
    others = GateSection(metrics=[name for name in GATE.metrics if name != fact])
    assert judge(result(**{fact: value}), TASK, others, HISTORY).failure is None


@pytest.mark.parametrize(("fact", "value"), [("spills", 0.0), ("mfma", 128.0), ("bytes", 1e9), ("min_waves", 8.0)])
def test_what_is_the_same_or_better_passes_without_a_word(fact: str, value: float) -> None:
    judged = judge(result(**{fact: value}), TASK, GATE, HISTORY)
    assert (judged.failure, judged.warnings) == (None, ())


def test_the_newest_good_run_on_the_target_is_the_baseline() -> None:
    later = [run("prefill_spills", 20.0), run("prefill_spills", 0.0, "mi350x")]
    assert judge(result(spills=20.0), TASK, GATE, [*HISTORY, *later]).failure is None
    own = run("prefill_spills", 0.0, task=TASK.task)  # an earlier attempt of the task itself
    assert judge(result(spills=20.0), TASK, GATE, [*HISTORY, *later, own]).failure is None


def test_what_can_not_be_compared_passes_and_says_so() -> None:
    assert judge(result(), TASK, GATE, []).warnings == (
        "gate: prefill_spills, prefill_mfma, prefill_bytes, prefill_dispatches, prefill_min_waves, prefill_link_bytes "
        "passes: there is nothing to compare it with yet",
    )
    on_cpu = replace(result(), measurements=(Measurement("prefill_bytes", (1.5e9,), CONTEXT),))
    assert judge(on_cpu, TASK, GATE, HISTORY).warnings == (
        "gate: spills, mfma, dispatches, min_waves, link_bytes passes: the target or the program has none",
    )
    of_compile = replace(result(), measurements=(Measurement("vmfb_bytes", (1.0,)),))
    assert judge(of_compile, TASK, GATE, HISTORY) == of_compile


def test_floors_of_cpus_follow_from_what_each_node_measured() -> None:
    gate = GateSection(metrics=["floor_ms"])
    found = TaskResult("j2-03-1", 1, None, measurements=(Measurement("prefill_floor_ms", (11.0,), CONTEXT),))
    on_gpu, on_cpu = run("prefill_floor_ms", 10.0), run("prefill_floor_ms", 10.0, "cpu")
    assert judge(found, TASK, gate, [on_gpu]).failure is not None
    assert judge(found, replace(TASK, target="cpu"), gate, [on_cpu]).failure is None
