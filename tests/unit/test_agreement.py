"""When a task that was run again has come to the same."""

import pytest

from db.measured import Measured
from jobs.task import Artifact
from orchestrator.repeating.agreement import Finding, agrees, compare, compare_files, noise_of

STEADY = (10.0, 10.1, 9.9, 10.0, 10.05)


def measured(*samples: float, metric: str = "ttft_ms", batch: int | None = 1) -> Measured:
    middle = sorted(samples)[len(samples) // 2]
    return Measured(metric, "ms", batch, 64, middle, samples, {})


def scaled(by: float) -> tuple[float, ...]:
    return tuple(sample * by for sample in STEADY)


@pytest.mark.parametrize(
    ("metric", "by", "target", "finding"),
    [
        ("ttft_ms", 1.02, "mi300x", Finding.AGREES),
        ("ttft_ms", 1.12, "mi300x", Finding.WORSE),
        ("ttft_ms", 0.9, "mi300x", Finding.BETTER),
        ("prefill_tokens_per_s", 1.12, "mi300x", Finding.BETTER),
        ("prefill_tokens_per_s", 0.9, "mi300x", Finding.WORSE),
        ("ttft_ms", 1.12, "cpu", Finding.AGREES),
        ("ttft_ms", 1.3, "cpu", Finding.WORSE),
    ],
)
def test_timings_agree_within_the_noise_of_their_target(metric: str, by: float, target: str, finding: Finding) -> None:
    old, new = measured(*STEADY, metric=metric), measured(*scaled(by), metric=metric)
    (found,) = compare([old], [new], [], target)
    assert found.finding is finding
    assert found.estimate is not None
    assert found.estimate.ratio == pytest.approx(by, rel=0.02)


def test_what_varied_more_between_earlier_runs_may_vary_more_now() -> None:
    earlier = [[measured(*scaled(by))] for by in (1.0, 1.1, 0.9, 1.05)]
    (found,) = compare([measured(*STEADY)], [measured(*scaled(1.2))], earlier, "mi300x")
    assert found.finding is Finding.AGREES
    assert found.noise == pytest.approx(0.27, abs=0.03)


@pytest.mark.parametrize(("runs", "noise"), [(2, 0.073), (4, 0.073), (5, 0.014)])
def test_runs_that_were_alike_tell_of_little_noise_once_there_are_enough(runs: int, noise: float) -> None:
    assert noise_of([10.0] * runs, "mi300x") == pytest.approx(noise, abs=0.001)


def test_samples_that_scatter_widely_say_nothing_against_it() -> None:
    (found,) = compare([measured(1.0, 9.0, 2.0, 3.0)], [measured(4.0, 2.0, 11.0, 6.0)], [], "mi300x")
    assert found.finding is Finding.AGREES


@pytest.mark.parametrize("old", [(1.0,), (0.0, 1.0, 2.0)])
def test_one_sample_is_not_judged_nor_what_has_no_ratio(old: tuple[float, ...]) -> None:
    (found,) = compare([measured(*old)], [measured(9.0)], [], "cpu")
    assert found.finding is Finding.UNJUDGED
    assert agrees([found], [])


@pytest.mark.parametrize(
    ("metric", "old", "new", "finding"),
    [
        ("perplexity", 7.43, 7.4301, Finding.AGREES),
        ("perplexity", 7.43, 7.6, Finding.DIFFERS),
        ("kl_mean", 1e-12, 9e-12, Finding.AGREES),
        ("argmax_agreement", 1.0, 0.5, Finding.DIFFERS),
        ("mfma_prefill", 96.0, 95.0, Finding.DIFFERS),
    ],
)
def test_figures_agree_as_closely_as_the_same_computation_does(
    metric: str, old: float, new: float, finding: Finding
) -> None:
    (found,) = compare([measured(old, metric=metric)], [measured(new, metric=metric)], [], "cpu")
    assert found.finding is finding


def test_workloads_are_compared_each_with_its_own() -> None:
    found = compare([measured(*STEADY), measured(*STEADY, batch=2)], [measured(*STEADY, batch=2)], [], "cpu")
    assert [(one.batch, one.finding) for one in found] == [(1, Finding.MISSING), (2, Finding.AGREES)]
    assert not agrees(found, [])


def test_files_agree_when_they_are_equal_and_logs_are_left_out() -> None:
    old = (
        Artifact("model.vmfb", "vmfb", "1" * 64, 1),
        Artifact("a", "irpa", "2" * 64, 1),
        Artifact("l", "log", "3", 1),
    )
    new = (
        Artifact("model.vmfb", "vmfb", "1" * 64, 1),
        Artifact("a", "irpa", "4" * 64, 1),
        Artifact("b", "irpa", "5", 1),
    )
    found = {one.name: one.finding for one in compare_files(old, new)}
    assert found == {"model.vmfb": Finding.AGREES, "a": Finding.DIFFERS, "b": Finding.MISSING}
