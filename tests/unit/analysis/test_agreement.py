"""Whether a task that was run again agrees with its first run."""

import pytest

from db.reads.earlier_measurements import StoredMeasurement
from jobs.task import Artifact
from orchestrator.analysis.agreement import agrees, compare_attempts, compare_files, noise_tolerance
from orchestrator.analysis.verdicts import Verdict

STEADY = (10.0, 10.1, 9.9, 10.0, 10.05)


def measured(*samples: float, metric: str = "ttft_ms", batch: int | None = 1) -> StoredMeasurement:
    middle = sorted(samples)[len(samples) // 2]
    return StoredMeasurement(metric, "ms", batch, 64, middle, samples, {})


def scaled(by: float) -> tuple[float, ...]:
    return tuple(sample * by for sample in STEADY)


@pytest.mark.parametrize(
    ("metric", "by", "target", "verdict"),
    [
        ("ttft_ms", 1.02, "mi300x", Verdict.AGREES),
        ("ttft_ms", 1.12, "mi300x", Verdict.SLOWER),
        ("ttft_ms", 0.9, "mi300x", Verdict.FASTER),
        ("prefill_tokens_per_s", 1.12, "mi300x", Verdict.FASTER),
        ("prefill_tokens_per_s", 0.9, "mi300x", Verdict.SLOWER),
        ("ttft_ms", 1.12, "cpu", Verdict.AGREES),
        ("ttft_ms", 1.3, "cpu", Verdict.SLOWER),
    ],
)
def test_timings_agree_within_the_noise_tolerance_their_target(
    metric: str, by: float, target: str, verdict: Verdict
) -> None:
    old, new = measured(*STEADY, metric=metric), measured(*scaled(by), metric=metric)
    (comparison,) = compare_attempts([old], [new], [], target)
    assert comparison.verdict is verdict
    assert comparison.estimate is not None
    assert comparison.estimate.ratio == pytest.approx(by, rel=0.02)


def test_what_varied_more_between_earlier_runs_may_vary_more_now() -> None:
    earlier = [[measured(*scaled(by))] for by in (1.0, 1.1, 0.9, 1.05)]
    (comparison,) = compare_attempts([measured(*STEADY)], [measured(*scaled(1.2))], earlier, "mi300x")
    assert comparison.verdict is Verdict.AGREES
    assert comparison.tolerance == pytest.approx(0.22, abs=0.01)


@pytest.mark.parametrize(("runs", "noise"), [(1, 0.073), (2, 0.062), (4, 0.045), (9, 0.014)])
def test_runs_that_were_alike_tell_of_less_noise_the_more_there_are(runs: int, noise: float) -> None:
    assert noise_tolerance([10.0] * runs, "ttft_ms", "mi300x") == pytest.approx(noise, abs=0.001)


def test_samples_that_scatter_widely_say_nothing_against_it() -> None:
    (comparison,) = compare_attempts([measured(1.0, 9.0, 2.0, 3.0)], [measured(4.0, 2.0, 11.0, 6.0)], [], "mi300x")
    assert comparison.verdict is Verdict.AGREES


@pytest.mark.parametrize("old", [(1.0,), (0.0, 1.0, 2.0)])
def test_one_sample_is_not_judged_nor_what_has_no_ratio(old: tuple[float, ...]) -> None:
    (comparison,) = compare_attempts([measured(*old)], [measured(9.0)], [], "cpu")
    assert comparison.verdict is Verdict.UNJUDGED
    assert agrees([comparison])


@pytest.mark.parametrize(
    ("metric", "old", "new", "verdict"),
    [
        ("perplexity", 7.43, 7.4301, Verdict.AGREES),
        ("perplexity", 7.43, 7.6, Verdict.DIFFERS),
        ("kl_mean", 1e-12, 9e-12, Verdict.AGREES),
        ("argmax_agreement", 1.0, 0.5, Verdict.DIFFERS),
        ("mfma_prefill", 96.0, 95.0, Verdict.DIFFERS),
    ],
)
def test_figures_agree_as_closely_as_the_same_computation_does(
    metric: str, old: float, new: float, verdict: Verdict
) -> None:
    (comparison,) = compare_attempts([measured(old, metric=metric)], [measured(new, metric=metric)], [], "cpu")
    assert comparison.verdict is verdict


def test_workloads_are_compared_each_with_its_own() -> None:
    comparisons = compare_attempts(
        [measured(*STEADY), measured(*STEADY, batch=2)], [measured(*STEADY, batch=2)], [], "cpu"
    )
    assert [(dict(comparison.workload)["batch"], comparison.verdict) for comparison in comparisons] == [
        (1, Verdict.MISSING),
        (2, Verdict.AGREES),
    ]
    assert not agrees(comparisons)


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
    verdicts = {comparison.name: comparison.verdict for comparison in compare_files(old, new)}
    assert verdicts == {"model.vmfb": Verdict.AGREES, "a": Verdict.DIFFERS, "b": Verdict.MISSING}
