"""Comparisons of two sets of runs, and the selectors of their sides."""

import math
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from scipy import stats

from db.reads.reports import AttemptRow
from db.reads.run_filter import RunFilter
from db.reads.runs import MeasuredRun
from jobs.errors import BadSetting
from jobs.task import Device, Pin, Place
from orchestrator.analysis import intervals, selectors
from orchestrator.analysis.comparisons import Comparison, compare
from orchestrator.analysis.intervals import (
    benjamini_hochberg_threshold,
    paired_estimate,
    runs_needed,
    stratified_estimate,
)
from orchestrator.analysis.noise import NoiseModel, learn_noise
from orchestrator.analysis.verdicts import Verdict
from orchestrator.reruns import interleaved
from tests.made_runs import run, runs, with_axes

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TIMINGS = RunFilter(("ttft_ms",))


def scattered(middle: float, count: int, sigma: float = 0.01, seed: int = 0) -> list[float]:
    random = Random(seed)
    return [middle * math.exp(random.gauss(0, sigma)) for _ in range(count)]


def verdict_of(old: list[MeasuredRun], new: list[MeasuredRun], **options: Any) -> Comparison:
    (cell,) = compare(old, new, NoiseModel(), 2.0, **options)
    return cell


def test_student_s_interval_and_p_value_are_those_of_scipy() -> None:
    old, new = [[math.log(value) for value in scattered(100, 6, seed=seed)] for seed in (1, 2)]
    estimate, wanted = stratified_estimate([(old, new)], None), stats.ttest_ind(new, old)
    assert estimate is not None
    interval = wanted.confidence_interval(1 - intervals.ALPHA)
    assert (estimate.log_low, estimate.log_high, estimate.p_value) == pytest.approx(
        (interval.low, interval.high, wanted.pvalue)
    )
    turns = [after - before for before, after in zip(old, new, strict=True)]
    paired, alone = paired_estimate(turns, None), stats.ttest_1samp(turns, 0)
    assert paired is not None
    assert (paired.log_high, paired.p_value) == pytest.approx(
        (alone.confidence_interval(1 - intervals.ALPHA).high, alone.pvalue)
    )


def test_where_runs_are_skewed_the_bootstrap_widens_the_interval_as_scipy_s_does() -> None:
    steady, skewed = [0.0] * 12, [0.0] * 9 + [0.2, 0.3, 0.5]
    estimate = stratified_estimate([(steady, skewed)], None)
    assert estimate is not None
    wanted = stats.bootstrap(
        (skewed,), lambda values: sum(values) / len(values), confidence_level=1 - intervals.ALPHA,
        n_resamples=2000, method="percentile", vectorized=False, rng=1,
    ).confidence_interval  # fmt: skip
    assert estimate.log_high == pytest.approx(wanted.high, rel=0.1)
    assert estimate.log_low < 0 < estimate.log_high


def test_of_many_comparisons_only_those_that_stand_out_are_told_apart() -> None:
    ps = [0.0001, 0.004, 0.2, 0.5, 0.9]
    limit = benjamini_hochberg_threshold(ps, 0.01)
    assert [p <= limit for p in ps] == list(stats.false_discovery_control(ps) <= 0.01)
    assert benjamini_hochberg_threshold([0.5], 0.01) < 0


@pytest.mark.parametrize(
    ("by", "metric", "unit", "verdict"),
    [
        (1.05, "ttft_ms", "ms", Verdict.SLOWER),
        (0.95, "ttft_ms", "ms", Verdict.FASTER),
        (1.05, "decode_tokens_per_s", "tokens/s", Verdict.FASTER),
        (1.05, "vmfb_bytes", "bytes", Verdict.WORSE),
        (1.0, "ttft_ms", "ms", Verdict.EQUIVALENT),
    ],
)
def test_ten_quiet_runs_a_side_tell_five_percent(by: float, metric: str, unit: str, verdict: Verdict) -> None:
    old, new = (
        runs(scattered(100 * size, 10, 0.005, seed), metric=metric, unit=unit) for seed, size in ((1, 1), (2, by))
    )
    if metric == "vmfb_bytes":
        old, new = ([run(100.0 * size, metric=metric, unit=unit)] for size in (1, by))
    assert verdict_of(old, new).verdict is verdict


def test_repetitions_within_a_run_do_not_make_it_count_more() -> None:
    cell = verdict_of(runs([100.0]), runs([105.0]))
    assert (cell.verdict, cell.old_runs, cell.new_runs) == (Verdict.INCONCLUSIVE, 1, 1)
    assert cell.more_runs > 5
    assert f"needs {cell.more_runs} more runs of each" in cell.reason


def test_as_many_runs_as_were_needed_decide() -> None:
    few = verdict_of(runs(scattered(100, 4, 0.02, 1)), runs(scattered(105, 4, 0.02, 2)))
    assert few.verdict is Verdict.INCONCLUSIVE
    more = 4 + few.more_runs
    decided = [
        verdict_of(runs(scattered(100, more, 0.02, seed)), runs(scattered(105, more, 0.02, 50 + seed))).verdict
        for seed in range(20)
    ]
    assert decided.count(Verdict.SLOWER) >= 12
    assert runs_needed(few.estimate, 0.02) == more if few.estimate else False


def test_devices_that_differ_are_each_compared_with_themselves() -> None:
    old = [*runs([100.0, 101.0, 100.5], place="fast"), *runs([110.0, 110.5, 111.0], place="slow")]
    new = [*runs([100.2, 100.7], place="fast"), *runs([110.2, 110.9, 110.4, 110.6, 110.3], place="slow")]
    pooled = verdict_of(old, new)
    assert pooled.ratio == pytest.approx(1.0, abs=0.005)
    each = compare(old, new, NoiseModel(), 2.0, each_device=True)
    assert [(cell.places, cell.new_runs) for cell in each] == [(("fast",), 2), (("slow",), 5)]


def test_what_never_ran_on_one_device_is_not_told_apart() -> None:
    cell = verdict_of(runs([100.0] * 9, place="a"), runs([150.0] * 9, place="b"))
    assert (cell.verdict, cell.estimate) == (Verdict.INCONCLUSIVE, None)
    assert "no device has both: A ran on a, B on b" in cell.reason


def test_only_what_the_sides_differ_in_is_compared() -> None:
    """Engines differ here, so attention must agree, unless each side has only one."""
    eager = with_axes(attention="eager")
    torch, torch_eager = with_axes(engine="torch"), with_axes(engine="torch", attention="eager")
    old = [run(100, axes=with_axes()), run(120, axes=eager, variant="tiny-eager")]
    new = [run(90, axes=torch, variant="tiny-torch"), run(80, axes=torch_eager, variant="tiny-eager-torch")]
    cells = compare(old, new, NoiseModel(), 2.0)
    assert [(cell.old_variant, cell.new_variant) for cell in cells] == [
        ("tiny-FP16-TP1", "tiny-torch"), ("tiny-eager", "tiny-eager-torch"),
    ]  # fmt: skip
    assert len(compare(old[:1], new[1:], NoiseModel(), 2.0)) == 1
    with pytest.raises(BadSetting, match="name one of them with variant:NAME"):
        compare(old, [run(90, axes=with_axes(attention="flash"), variant="tiny-flash")], NoiseModel(), 2.0)


def test_runs_that_both_sides_name_are_of_the_side_that_names_fewer() -> None:
    old = runs([100.0] * 5)
    new = runs([105.0] * 2)
    cell = verdict_of([*old, *new], new)
    assert (cell.old_runs, cell.new_runs) == (5, 2)
    with pytest.raises(BadSetting, match="both name the same runs"):
        compare(new, new, NoiseModel(), 2.0)


def test_on_one_device_b_by_a_is_the_ratio() -> None:
    cell = verdict_of(runs([10.0, 14.0, 30.0]), runs([9.0, 9.5]))
    assert cell.old and cell.new
    assert cell.ratio == pytest.approx(cell.new / cell.old)


def test_what_may_be_chance_among_so_many_comparisons_says_so() -> None:
    kinds = ["ttft_ms", "itl_ms", "e2e_ms", "itl_mean_ms", "itl_p50_ms", "itl_p99_ms"]
    old = [run for metric in kinds for run in runs(scattered(100, 6, 0.01), metric=metric)]
    new = [run for metric in kinds for run in runs(scattered(100, 6, 0.01, 1), metric=metric)]
    new[:6] = runs(scattered(102, 6, 0.01, 1), metric=kinds[0])
    ttft = {cell.metric: cell for cell in compare(old, new, NoiseModel(), 0.5)}["ttft_ms"]
    assert ttft.interval is not None and ttft.interval[0] > 1
    assert (ttft.verdict, ttft.reason.partition(":")[0]) == (
        Verdict.INCONCLUSIVE,
        "may be chance among 6 comparisons",
    )


def test_a_comparison_names_the_variables_that_differ() -> None:
    old = runs([1.0, 1.1], variables=(("IREE_PY_RUNTIME", "default"),))
    new = runs([2.0, 2.1], variables=(("IREE_PY_RUNTIME", "tracy"),))
    unknown = runs([2.0, 2.1])
    for side, conditions in ((new, ("IREE_PY_RUNTIME default to tracy",)), (unknown, ())):
        (comparison,) = compare(old, side, NoiseModel(), 2.0)
        assert comparison.conditions == conditions


def test_noise_is_learned_from_runs_between_which_nothing_changed() -> None:
    alike = runs(scattered(100, 30, 0.02))
    faster = runs(scattered(50, 30, 0.02, 1), digest="q" * 64)
    noise = learn_noise([*alike, *faster]).noise_of(alike[0])
    assert noise is not None
    assert noise.sigma == pytest.approx(0.02, rel=0.25)
    assert noise.degrees_of_freedom < 58  # earlier runs never outvote many new ones


def test_what_is_published_fills_up_where_few_runs_tell() -> None:
    cpu, gpu = (NoiseModel().noise_of(run(1, target=target)) for target in ("cpu", "mi300x"))
    assert cpu is not None and gpu is not None
    assert cpu.sigma > gpu.sigma > 0
    assert NoiseModel().noise_of(run(1), own_degrees_of_freedom=8) is None


def test_what_varies_otherwise_than_what_is_published_needs_a_history() -> None:
    """One run a side, one of them with a hiccup, is no reason to call a generation faster."""
    old, new = [run(6.0, metric="e2e_ms")], [run(2.8, metric="e2e_ms", digest="q" * 64)]
    (comparison,) = compare(old, new, NoiseModel(), 2.0)
    assert (comparison.verdict, comparison.more_runs) == (Verdict.INCONCLUSIVE, 2)
    assert comparison.reason == "nothing tells yet how much it varies: needs 2 more runs of each"
    (comparison,) = compare([run(6.0)], [run(2.8, digest="q" * 64)], NoiseModel(), 2.0)
    assert comparison.verdict is Verdict.FASTER, "the noise of a prefill is published"


def test_a_series_without_a_history_may_vary_as_the_noisiest_of_its_kind() -> None:
    quiet = runs(scattered(5.0, 12, 0.01), metric="e2e_ms", variant="quiet")
    loud = runs(scattered(5.0, 12, 0.2), metric="e2e_ms", variant="loud")
    other_kind = runs(scattered(5.0, 12, 0.9), metric="e2e_ms", target="cpu")
    old, new = [run(6.0, metric="e2e_ms")], [run(5.0, metric="e2e_ms", digest="q" * 64)]
    for history, verdict in ((quiet, Verdict.FASTER), ([*quiet, *loud, *other_kind], Verdict.INCONCLUSIVE)):
        (comparison,) = compare(old, new, learn_noise(history), 2.0)
        assert comparison.verdict is verdict


def test_figures_that_follow_from_the_computation_need_no_runs() -> None:
    def verdict_between(old: float, new: float) -> Verdict:
        sides = [[run(value, metric="perplexity", unit="1")] for value in (old, new)]
        return verdict_of(sides[0], sides[1]).verdict

    assert (verdict_between(7.43, 7.4301), verdict_between(7.43, 7.9)) == (Verdict.EQUIVALENT, Verdict.WORSE)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7f3a", {"job": "7f3a"}),
        ("job:7f3a", {"job": "7f3a"}),
        ("7f3a0000-05", {"result": "7f3a0000-05"}),
        ("torch", {"engine": "torch"}),
        ("llama3.1-8B-FP8-TP8", {"variant": "llama3.1-8B-FP8-TP8"}),
        ("toolchain:iree-3.*, engine:iree", {"toolchain": "iree-3.*", "engine": "iree"}),
        ("2026-11-01T00:00+00:00..2026-11-02T00:00+00:00",
         {"since": datetime(2026, 11, 1, tzinfo=UTC), "until": datetime(2026, 11, 2, tzinfo=UTC)}),
        ("7d..", {"since": NOW - timedelta(days=7)}),
        ("node:n1,..12h", {"node": "n1", "until": NOW - timedelta(hours=12)}),
    ],
)  # fmt: skip
def test_sides_are_called_by_what_is_easy_to_guess(text: str, wanted: dict[str, Any]) -> None:
    assert selectors.parse(text, TIMINGS, NOW) == RunFilter(("ttft_ms",), **wanted)


def test_a_day_is_all_of_it() -> None:
    day = selectors.parse("2026-11-20", TIMINGS, NOW)
    assert day.since and day.until and day.until - day.since == timedelta(days=1)
    assert selectors.parse("2026-11-20..2026-11-20", TIMINGS, NOW) == day


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"), ("torch,", "empty"), ("colour:red", "variant:"), ("engine:trch", "iree, torch"), ("..", "7d.."),
        ("yesterday..", "neither a date"), ("torch,engine:iree", "given twice"), ("job:", "job:"),
    ],
)  # fmt: skip
def test_a_side_that_makes_no_sense_is_told_what_would(text: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        selectors.parse(text, TIMINGS, NOW)


def test_metrics_are_named_or_matched() -> None:
    assert selectors.metrics("ttft_ms") == ("ttft_ms",)
    assert {"ttft_ms", "itl_ms"} <= set(selectors.metrics(None)) <= set(selectors.metrics("*"))
    with pytest.raises(BadSetting, match="ttft_ms"):
        selectors.metrics("ttft")


def interleaved_of(
    slower: float, sigma: float, max_rounds: int = 32, seed: int = 0
) -> tuple[interleaved.InterleavedComparison, list[Comparison]]:
    random, order = Random(seed), list[int]()

    def measure(side: int) -> list[MeasuredRun]:
        order.append(side)
        drift = 1 + 0.1 * math.sin(len(order))  # both sides of a round have nearly the same
        return [run(100 * drift * (slower if side else 1.0) * math.exp(random.gauss(0, sigma)))]

    comparison = interleaved.InterleavedComparison(measure, NoiseModel(), 2.0, max_rounds)
    cells = None
    while comparison.rounds < max_rounds and not (cells and cells[0].verdict is not Verdict.INCONCLUSIVE):
        cells = comparison.run_round() or cells
    assert order[:4] == [0, 1, 1, 0]
    assert cells is not None
    return comparison, cells


def ran_on(*places: tuple[str, tuple[int, ...]]) -> AttemptRow:
    all_places = tuple(Place(node, tuple(Device("mi300x", index) for index in devices)) for node, devices in places)
    values = {
        "node": all_places[0].node,
        "places": all_places,
        "devices": tuple(device for place in all_places for device in place.devices),
    }
    return AttemptRow(**{**dict.fromkeys(AttemptRow.__dataclass_fields__), **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "pins"),
    [
        (ran_on(("a", (3,))), ran_on(("b", (5,))), [Pin("b", (5,)), Pin("b", (5,))]),
        (ran_on(("a", (3,))), ran_on(("b", (4, 5))), [Pin("b", (4,)), Pin("b", (4, 5))]),
        (ran_on(("a", (2, 3))), ran_on(("b", (5,))), [Pin("a", (2, 3)), Pin("a", (2,))]),
        (ran_on(("a", ())), ran_on(("b", ())), [Pin("b"), Pin("b")]),
        (ran_on(("a", (0, 1)), ("b", (0, 1))), ran_on(("a", (0, 1, 2, 3))), [None, None]),
    ],
)
def test_both_sides_of_an_interleaved_comparison_run_on_the_same_devices(
    old: AttemptRow, new: AttemptRow, pins: list[Pin | None]
) -> None:
    assert interleaved.pins_of([old, new]) == pins


def test_an_interleaved_comparison_ends_as_soon_as_it_is_decided() -> None:
    quick, cells = interleaved_of(2.0, 0.01)
    assert (cells[0].verdict, quick.rounds) == (Verdict.SLOWER, 4)
    long, cells = interleaved_of(1.0, 0.2, 8)
    assert (cells[0].verdict, long.rounds) == (Verdict.INCONCLUSIVE, 8)
    assert cells[0].more_runs > 8


@pytest.mark.parametrize(
    ("text", "runs", "wall_s"), [("40", 40, None), ("20m", None, 1200.0), ("90s", None, 90.0), ("2h", None, 7200.0)]
)
def test_a_budget_is_runs_or_time(text: str, runs: int | None, wall_s: float | None) -> None:
    assert interleaved.parse_budget(text) == interleaved.RunBudget(runs, wall_s)


@pytest.mark.parametrize("text", ["", "0", "3", "2d", "-4", "many"])
def test_a_budget_that_decides_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="--budget"):
        interleaved.parse_budget(text)
