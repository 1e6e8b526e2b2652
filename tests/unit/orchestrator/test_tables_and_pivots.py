"""Tables as text, Markdown and Parquet; runs by date beside their targets; what a report tells of changes."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from db.reads.matrix import CellRow, MatrixRow, Median
from db.reads.runs import MeasuredRun
from db.schema.imported import DIGEST
from db.writes.targets import QuotedTarget
from jobs.errors import BadSetting
from jobs.number_format import format_number
from jobs.state import Failure, FailureKind, TaskState
from jobs.variants import Attention, Axes, Precision
from orchestrator.reports import charts, html, markdown
from orchestrator.reports.changes import metric_shifts, verdict_changes
from orchestrator.reports.report import FailedTask, ReportFilters, StatusReport
from orchestrator.tables import TextTable, drop_constant_columns, split_into_records, to_plain_text, unwrapped_columns
from orchestrator.views import grouping, matrix_view, pivots
from orchestrator.views.formats import OutputFormat, markdown_table, write_parquet

NOON = datetime(2025, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
AXES = Axes(precision=Precision.F16, attention=Attention.SDPA, tp=1).axes
ATTACK = "</pre><script>alert(1)</script> | *x* ```\n[a](b)"


def run_of(median: float, days: int = 0, metric: str = "ttft_ms", **changes: Any) -> MeasuredRun:
    fields: dict[str, Any] = {
        "attempt": "j-01-1", "task": "j-01", "job": "j", "model": "tiny", "variant": "tiny-FP16-TP1", "target": "cpu",
        "axes": AXES, "metric": metric, "unit": "ms", "workload": (("batch", 4), ("prompt_tokens", 128)),
        "median": median, "place": "s0", "node": "n", "devices": ("cpu:0",), "digest": "d", "driver": "",
        "at": NOON + days * DAY, "is_good": True,
    }  # fmt: skip
    return MeasuredRun(**{**fields, **changes})


def quoted(metric: str, value: float) -> QuotedTarget:
    return QuotedTarget("tiny-*", "", metric, None, None, None, value, "ms", "vLLM 0.10", "ada", NOON)


def test_a_trackers_table_has_ttft_and_itl_by_date_beside_the_target() -> None:
    runs = [run_of(200.0), run_of(204.0), run_of(198.0, 1), run_of(9.5, 1, "itl_ms")]
    pivot = pivots.pivot(runs, "date", [quoted("ttft_ms", 180.0)])
    shown = pivots.to_table(pivot)
    assert shown.columns == ("variant", "target", "workload", "2025-11-21", "2025-11-22", "Target", "to target")
    assert shown.rows == [("tiny-FP16-TP1", "cpu", "4 x 128", "(202, ?)", "(198, 9.5)", "(180, ?)", "+10.0%, ?")]
    assert "Target: vLLM 0.10" in pivots.pivot_notes(pivot)
    rows, columns = pivots.to_csv(pivot)
    assert (columns[-5:], [row["2025-11-22"] for row in rows]) == (
        ("2025-11-21", "2025-11-22", "quoted", "source", "imported"),
        [198.0, 9.5],
    )


def test_each_rows_newest_value_is_held_against_its_target() -> None:
    runs = [run_of(360.0), run_of(50.0, 1, variant="other-FP16-TP1")]
    pivot = pivots.pivot(runs, "date", [quoted("ttft_ms", 180.0)])
    assert [line[-1] for line in pivots.to_table(pivot).rows] == ["", "+100.0%"]


def test_a_pivot_marks_what_was_imported_and_names_the_file() -> None:
    other = run_of(2.0, 1, digest=f"{DIGEST}x", facts={"imported_from": "page.md"})
    pivot = pivots.pivot([run_of(1.0), other], "date")
    assert pivots.to_table(pivot).rows == [("tiny-FP16-TP1", "cpu", "4 x 128", "ttft_ms", "1 ms", "2 ms *")]
    assert "* imported from page.md" in pivots.pivot_notes(pivot)
    assert pivots.to_json(pivot)[0]["imported"] == {"2025-11-22": "page.md"}


def test_jobs_stand_in_the_order_in_which_they_measured() -> None:
    runs = [run_of(1.0, 2, job="a"), run_of(2.0, 1, job="c"), run_of(3.0, job="b")]
    assert pivots.pivot(runs, "job").columns == ("b", "c", "a")
    assert pivots.pivot(runs, "job", most=2).columns == ("c", "a")


def test_a_pivot_keeps_the_newest_dates_and_leaves_out_what_failed() -> None:
    runs = [run_of(1.0, days) for days in range(4)] + [run_of(9.0, 3, is_good=False)]
    pivot = pivots.pivot(runs, "date", most=2)
    assert (pivot.columns, pivot.left_out) == (("2025-11-23", "2025-11-24"), 2)
    assert pivot.rows[0].medians["2025-11-24"] == 1.0


def test_a_pivot_of_toolchains_has_one_row_for_variants_that_differ_by_nothing_else() -> None:
    other = run_of(2.0, variant="tiny-FP16-TP1-iree-3.12", axes={**AXES, "toolchain": "iree-3.12"})
    pivot = pivots.pivot([run_of(1.0), other], "toolchain")
    assert [dict(row.medians) for row in pivot.rows] == [{"default": 1.0, "iree-3.12": 2.0}]


def test_a_pivot_of_engines_has_one_row_for_variants_that_differ_in_engine_and_toolchain_alone() -> None:
    axes = {**AXES, "engine": "vllm", "toolchain": "vllm-cpu"}
    other = run_of(2.0, variant="tiny-FP16-TP1-vllm-vllm-cpu@n:0", axes=axes)
    pivot = pivots.pivot([run_of(1.0, variant="tiny-FP16-TP1@n:0"), other], "engine")
    assert [(row.variant, dict(row.medians)) for row in pivot.rows] == [
        ("tiny-FP16-TP1@n:0", {"iree": 1.0, "vllm (vllm-cpu)": 2.0})
    ]


def test_groups_sum_up_what_they_hold() -> None:
    runs = [run_of(1.0), run_of(3.0, 1), run_of(5.0, node="m")]
    rows = grouping.group_runs(runs, grouping.parse("variant, node"))
    assert [(row["node"], row["runs"], row["median"], row["lowest"]) for row in rows] == [
        ("m", 1, 5.0, 5.0),
        ("n", 2, 2.0, 1.0),
    ]
    with pytest.raises(BadSetting, match="choose from model"):
        grouping.parse("colour")


def test_markdown_shows_text_as_it_is() -> None:
    table = markdown_table(TextTable(("a", "b"), [("x|y\nz", "<b>1*")], right=("b",)))
    assert table.splitlines()[2] == r"| x\|y z | \<b\>1\* |"
    assert table.splitlines()[1].endswith("-: |")
    assert len({line.count(" | ") for line in table.splitlines()}) == 1


def test_a_table_for_programs_has_a_line_a_row() -> None:
    assert to_plain_text(TextTable(("a", "n"), [("x\ny", "1"), ("z", "20")], ("n",))) == "a     n\nx y   1\nz    20\n"
    assert to_plain_text(TextTable(("a", "n"), [("日本", "1"), ("z", "2")])) == "a     n\n日本  1\nz     2\n"


def test_a_rounded_number_shows_three_digits_and_one_that_was_written_down_stays_as_it_was() -> None:
    values = (0.80002, 0.8, 9.996, 99.96, 999.7, 100.4, 12345.6, 0.0146, 2.0)
    assert [format_number(value) for value in values] == [
        "0.800", "0.8", "10.0", "100", "1000", "100", "12346", "0.0146", "2",
    ]  # fmt: skip


def test_a_table_that_is_too_wide_says_once_what_is_equal_in_all_rows() -> None:
    rows = [("tiny-FP16", "cpu", "", "1"), ("tiny-FP16", "cpu", "", "4")]
    table = TextTable(("variant", "target", "noise", "batch"), rows)
    assert drop_constant_columns(table, 80) == (table, "")
    narrow, constants = drop_constant_columns(table, 20)
    assert (narrow.columns, narrow.rows) == (["batch"], [["1"], ["4"]])
    assert constants == "in all rows: variant tiny-FP16, target cpu"
    for kept in (rows[:1], [rows[0], rows[0]]):  # of a single row, or of equal rows, nothing is left
        assert drop_constant_columns(replace(table, rows=kept), 20) == (replace(table, rows=kept), "")


def test_numbers_and_the_first_column_are_wrapped_last() -> None:
    table = TextTable(("variant", "why", "ms"), [("tiny-FP16-TP1", "because " * 20, "1.33 ms")], right=("ms",))
    assert unwrapped_columns(table, 80) == ("ms", "variant")
    assert unwrapped_columns(table, 30) == ("ms",)
    assert unwrapped_columns(table, 20) == ()


def test_a_terminal_that_is_too_narrow_for_the_columns_shows_a_record_for_each_row() -> None:
    table = TextTable(("variant", "why", "ms"), [("tiny-FP16-TP1", "because " * 20, "1 ms"), ("other", "", "2 ms")])
    assert list(split_into_records(table, 40)) == [table]
    records = list(split_into_records(table, 20))
    assert [record.rows for record in records] == [
        [("variant", "tiny-FP16-TP1"), ("why", "because " * 20), ("ms", "1 ms")],
        [("variant", "other"), ("ms", "2 ms")],
    ]
    (single,) = split_into_records(replace(table, rows=table.rows[:1]), 40)
    assert single.rows == records[0].rows


def test_an_answer_has_one_form() -> None:
    with pytest.raises(BadSetting, match="--json --csv"):
        OutputFormat(json=True, csv=True)


def test_parquet_keeps_numbers_lists_and_what_is_nested(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": (1.5, 2.0), "c": {"x": 1}}, {"a": None, "b": (), "c": {"y": [2]}}]
    write_parquet(tmp_path / "x.parquet", rows, ("a", "b", "c"))
    assert parquet.read_table(tmp_path / "x.parquet").to_pylist() == [
        {"a": 1, "b": [1.5, 2.0], "c": '{"x": 1}'},
        {"a": None, "b": [], "c": '{"y": [2]}'},
    ]
    write_parquet(tmp_path / "none.parquet", [], ("a",))
    assert parquet.read_table(tmp_path / "none.parquet").column_names == ["a"]


def cell(state: TaskState, failure: Failure | None = None) -> CellRow:
    return CellRow("j", "j-01", state, failure, None, False, None, None, (), NOON, ())


def row(cell: CellRow) -> MatrixRow:
    return MatrixRow("tiny", "tiny-FP16-TP1", "cpu", {"compile": cell}, **AXES)


BROKEN = cell(TaskState.FAILED, Failure(FailureKind.TOOL_FAILED, ATTACK))


def test_a_change_is_a_verdict_that_is_another() -> None:
    passed, pending = cell(TaskState.SUCCEEDED), cell(TaskState.PENDING)
    assert [(change.was, change.now) for change in verdict_changes([row(passed)], [row(BROKEN)])] == [
        ("PASS", "FAIL tool_failed")
    ]
    assert [(change.was, change.now) for change in verdict_changes([], [row(passed)])] == [("", "PASS")]
    assert verdict_changes([row(passed)], [row(cell(TaskState.CACHED))]) == []
    assert verdict_changes([row(passed)], [row(pending)]) == []


def timed(*workloads: tuple[int, int]) -> MatrixRow:
    medians = tuple(Median("ttft_ms", "ms", 9.0, *workload) for workload in workloads)
    return replace(row(BROKEN), stages={"benchmark": replace(cell(TaskState.SUCCEEDED), metrics=medians)})


def test_a_matrix_says_of_which_of_several_workloads_its_times_are() -> None:
    several = "; `haloctl results --pivot date` shows all workloads"
    assert matrix_view.matrix_notes([timed((1, 32)), timed((1, 32))]) == []
    assert matrix_view.matrix_notes([timed((1, 32), (4, 32)), timed((1, 32))]) == [
        f"TTFT and ITL: batch 1, prompt 32{several}"
    ]
    (different,) = matrix_view.matrix_notes([timed((1, 32), (4, 32)), timed((2, 64))])
    assert different == f"TTFT and ITL: each variant's smallest batch and shortest prompt{several}"


def test_a_shift_is_told_of_the_same_place_only() -> None:
    old = [run_of(100.0, -days) for days in (1, 2, 3)]
    (shift,) = metric_shifts([run_of(110.0, 1), *old], NOON)
    assert (shift.was, shift.now) == (100.0, 110.0)
    assert metric_shifts([run_of(101.0, 1), *old], NOON) == []
    assert metric_shifts([run_of(110.0, 1, place="s1"), *old], NOON) == []


def report(**changes: Any) -> StatusReport:
    runs = [run_of(200.0), run_of(198.0, 1), run_of(9.5, 1, "itl_ms")]
    targets = [quoted("ttft_ms", 180.0)]
    failed = FailedTask("j-01", "vmfb", "tool_failed", ATTACK, ATTACK, NOON, ("tiny-FP16-TP1 cpu",))
    fields: dict[str, Any] = {
        "at": NOON, "since": NOON - DAY, "is_first": False, "filters": ReportFilters(), "rows": [row(BROKEN)],
        "benchmark": pivots.pivot(runs, "date", targets), "runs": runs, "quoted": targets,
        "changed": changes_of(BROKEN), "shifted": metric_shifts(runs, NOON + DAY), "files": [], "failures": [failed],
    }  # fmt: skip
    return StatusReport(**{**fields, **changes})


def changes_of(cell: CellRow) -> Any:
    return verdict_changes([], [row(cell)])


def test_a_page_fetches_nothing_and_shows_what_tools_wrote_as_text() -> None:
    page = html.page(report())
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not any(word in page for word in ("http://", "https://", "src=", "url(", "@import"))
    assert page.count("<svg") == 1
    assert "target 180" in page


def test_a_page_in_markdown_keeps_logs_in_their_fence() -> None:
    page = markdown.page(report())
    assert f"````\n{ATTACK}\n````" in page
    assert r"\</pre\>\<script\>alert(1)" in page
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## Numerics",
        "## Benchmark",
        f"## What changed since {(NOON - DAY).astimezone():%Y-%m-%d %H:%M %Z}",
        "## Open failures",
        "## Artifacts",
    ]


def test_a_page_says_how_much_was_disturbed_and_is_left_out() -> None:
    calm, disturbed = pivots.split_disturbed([run_of(1.0), run_of(9.0, facts={"disturbed": "others used 46%"})])
    assert ([run.median for run in calm], disturbed) == ([1.0], 1)
    said = "1 disturbed measurement left out"
    assert all(said in page(report(disturbed=disturbed)) for page in (html.page, markdown.page))
    assert not any("left out" in page(report()) for page in (html.page, markdown.page))


def test_points_lie_within_their_plot() -> None:
    (chart,) = charts.charts([run_of(1e9), run_of(1.0, 40), run_of(5.0, 41)], [quoted("ttft_ms", 2e9)])
    (plot,) = chart.plots
    low, high = plot.value_range
    assert low < 1.0 < 2e9 < high
    assert charts.to_svg(chart, 1).count("<title>") == len(plot.medians) == 3
    (alone,) = charts.charts([run_of(7.0)], [])
    assert charts.to_svg(alone, 1).count("<title>") == 1


def test_charts_take_their_colours_from_the_page_and_keep_their_ids_apart() -> None:
    (chart,) = charts.charts([run_of(7.0), run_of(8.0, 1)], [quoted("ttft_ms", 6.0)])
    first, second = (charts.to_svg(chart, number) for number in (1, 2))
    assert all(variable in first for variable in charts.COLOURS.values())
    assert not any(colour in first for colour in charts.COLOURS)
    ids = [set(re.findall(r'id="([^"]*)"', svg)) for svg in (first, second)]
    assert ids[0] and not ids[0] & ids[1]
    assert set(re.findall(r'href="#([^"]*)"', first)) <= ids[0]
