"""Change points of series, their suspects, and their display."""

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy
import pytest
import ruptures

from jobs.errors import BadSetting
from orchestrator.analysis.change_points import find_change_points
from orchestrator.analysis.trends import NO_SUSPECT, TrendSeries, attempts_at_changes, trend_series, with_suspects
from orchestrator.analysis.verdicts import Verdict
from orchestrator.views import plots
from tests.made_runs import run, runs

IDENTITY = {
    "stage": "benchmark",
    "version": 1,
    "settings": {"repetitions": 5},
    "toolchain": {"iree-base-runtime": "3.11.0", "numpy": "2.4.6"},
    "program": "",
    "host_cpu": "",
    "inputs": {"compile": [["model.vmfb", "3" * 64]]},
}
NEWER = {
    **IDENTITY,
    "toolchain": {"iree-base-runtime": "3.12.0", "numpy": "2.4.6"},
    "inputs": {"compile": [["model.vmfb", "4" * 64]]},
}


def levels(seed: int, *parts: tuple[float, int], sigma: float = 0.02) -> list[float]:
    random = Random(seed)
    return [math.log(level) + random.gauss(0, sigma) for level, count in parts for _ in range(count)]


def series(medians: Sequence[float], changed_at: int | None = None, **changes: str) -> TrendSeries:
    """Return one series, in which all runs from one index on differ in something."""
    runs = [run(median, **(changes if changed_at and at >= changed_at else {})) for at, median in enumerate(medians)]
    (trend,) = trend_series(runs)
    return trend


def test_changes_are_found_where_ruptures_finds_them() -> None:
    for seed in range(10):
        values = levels(seed, (100, 40), (106, 30), (98, 50))
        exact = ruptures.KernelCPD(kernel="linear", min_size=3).fit(numpy.asarray(values))  # told how many there are
        indices = [split.index for split in find_change_points(values)]
        assert len(indices) == 2
        assert indices == pytest.approx(exact.predict(n_bkps=2)[:-1], abs=1)


def test_a_series_in_which_nothing_changes_is_hardly_ever_split() -> None:
    assert sum(bool(find_change_points(levels(seed, (100, 60)))) for seed in range(300)) <= 2
    assert find_change_points([]) == find_change_points([1.0] * 50) == find_change_points([1.0, 2.0, 1.0, 2.0]) == []


def test_one_run_that_stands_out_is_no_new_level() -> None:
    values = levels(3, (100, 30))
    assert find_change_points([*values[:15], values[15] + 0.3, *values[16:]]) == []


def test_what_does_not_scatter_changes_at_once() -> None:
    assert [split.index for split in find_change_points([3.0] * 4 + [3.1] * 3)] == [4]


def test_a_change_tells_when_by_how_much_and_what_came_with_it() -> None:
    trend = series([100, 101, 99, 100, 100.5, 105, 106, 104.5, 105, 105.5], 5, digest="q" * 64)
    (change,) = trend.changes
    assert (change.index, change.verdict, change.at) == (5, Verdict.SLOWER, trend.runs[5].at)
    assert change.ratio == pytest.approx(1.05, abs=0.001)
    old, new = attempts_at_changes([trend])
    (explained,) = with_suspects([trend], {old: IDENTITY, new: NEWER})
    assert explained.changes[0].suspects == ("iree-base-runtime 3.11.0 to 3.12.0", "model.vmfb 33333333 to 44444444")
    (unexplained,) = with_suspects([trend], {})
    assert unexplained.changes[0].suspects == ("digest pppppppp to qqqqqqqq",)


def test_what_changed_a_run_before_is_suspected_for_noise_hides_it_so_long() -> None:
    (trend,) = with_suspects([series([100, 101, 99, 100, 100, 105, 106, 105, 105], 4, driver="6.5")], {})
    assert [(change.index, change.suspects) for change in trend.changes] == [(5, ("driver 6.4 to 6.5",))]


def test_a_change_without_any_cause_says_so() -> None:
    (trend,) = with_suspects([series([100, 101, 99, 100, 100, 94, 95, 94, 95])], {})
    assert [(change.verdict, change.suspects) for change in trend.changes] == [(Verdict.FASTER, (NO_SUSPECT,))]


def test_variables_that_changed_are_suspected_first() -> None:
    old = runs([1.0, 1.01, 0.99, 1.0, 1.0], variables=(("OMP_DYNAMIC", "false"),))
    new = runs([2.0, 2.01, 1.99, 2.0, 2.0], variables=(("IREE_PY_RUNTIME", "tracy"),))
    (change,) = with_suspects(trend_series([*old, *new]), {})[0].changes
    assert change.suspects == ("IREE_PY_RUNTIME not set to tracy", "OMP_DYNAMIC false to not set")


def test_a_level_of_zero_has_no_ratio() -> None:
    (change,) = series([0.0] * 4 + [2.0] * 4).changes
    assert (change.ratio, change.percent_text, change.new) == (None, "", 2.0)


def test_devices_and_workloads_are_series_of_their_own_and_noise_is_within_a_program() -> None:
    runs = []
    for at in range(12):
        digest = "p" * 64 if at < 6 else "q" * 64
        runs += [run((100 if at < 6 else 50) * (1.01 if at % 2 else 1), place=place, digest=digest) for place in "ab"]
    trends = trend_series(runs)
    assert [trend.first.place for trend in trends] == ["a", "b"]
    assert [len(trend.changes) for trend in trends] == [1, 1]
    assert trends[0].noise is not None
    assert trends[0].noise.sigma == pytest.approx(0.005, abs=0.001)


def test_a_picture_in_the_terminal_shows_every_level() -> None:
    text = plots.in_terminal(series([100.0] * 10 + [120.0] * 10), colour=False)
    assert "ttft_ms of tiny-FP16-TP1 mi300x, batch 1, prompt 64" in text
    assert "●" in text
    assert "┬" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("name", ["a.svg", "a.png"])
def test_a_picture_in_a_file_has_a_panel_for_each_workload(tmp_path: Path, name: str) -> None:
    trends = [
        series([100.0] * 10 + [120.0] * 10),
        *trend_series([run(5.0, metric="itl_ms"), run(5.1, metric="itl_ms")]),
    ]
    file = tmp_path / name
    plots.check_file(file)
    plots.to_file(file, trends)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
    assert len(content) > 5000


def test_what_is_no_picture_or_has_no_folder_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path / "a.txt", tmp_path / "none" / "a.svg"):
        with pytest.raises(BadSetting, match="--output"):
            plots.check_file(file)
    many = trend_series([run(1.0, variant=f"v{number}") for number in range(plots.MAX_PANELS + 1)])
    with pytest.raises(BadSetting, match="--variant"):
        plots.to_file(tmp_path / "a.svg", many)
