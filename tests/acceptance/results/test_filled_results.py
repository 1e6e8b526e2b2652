"""After one `submit --wait` of every stage, every figure is stored with its samples and conditions."""

import csv
import io
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import pytest

from jobs.variants import AXES
from tests.acceptance.conftest import Filled
from tests.acceptance.job_specs import NEW_TOKENS, PROMPT_TOKENS, REPETITIONS

TP1, TP2 = "tiny-llama-FP16-TP1", "tiny-llama-FP16-TP2"
RESULT_KEYS = {
    *("job", "task", "model", "variant", "target", "stage", "metric", "unit", "median", "samples"),
    *("batch", "prompt_tokens", "new_tokens", "evaluation", "device", "node", "versions", "context", "when"),
    *AXES,
}

Row = dict[str, Any]


@pytest.fixture(scope="session")
def results(filled: Filled) -> list[Row]:
    rows: list[Row] = filled.haloctl.json("results")
    return rows


def test_every_measurement_has_its_samples_unit_and_context(filled: Filled, results: list[Row]) -> None:
    begin = datetime.now(UTC) - timedelta(hours=1)
    for row in results:
        assert set(row) == RESULT_KEYS
        assert row["job"] == filled.job
        assert row["median"] == median(row["samples"])
        assert row["unit"]
        assert row["versions"]["iree-base-compiler"]
        assert begin < datetime.fromisoformat(row["when"]) < datetime.now(UTC)


@pytest.mark.parametrize(("variant", "devices"), [(TP1, 1), (TP2, 2)])
@pytest.mark.parametrize("metric", ["ttft_ms", "itl_ms", "prefill_tokens_per_s", "decode_tokens_per_s"])
def test_benchmarks_keep_a_sample_for_each_repetition(
    results: list[Row], variant: str, devices: int, metric: str
) -> None:
    (row,) = [row for row in results if (row["variant"], row["metric"]) == (variant, metric)]
    assert len(row["samples"]) == REPETITIONS
    assert len(row["context"]["warmup_ms"]) == 1
    assert all(sample > 0 for sample in row["samples"])
    assert (row["target"], row["batch"], row["prompt_tokens"]) == ("cpu", 1, PROMPT_TOKENS)
    assert len(set(row["device"])) == devices
    assert all(name.startswith("cpu:") for name in row["device"])


def test_the_perplexity_of_the_program_is_that_of_the_reference(results: list[Row]) -> None:
    for variant in (TP1, TP2):
        values = {row["metric"]: row["median"] for row in results if row["variant"] == variant}
        assert 1 < values["perplexity"] < 40  # an untrained model's is about its vocabulary's size, 512
        assert values["perplexity"] == pytest.approx(values["reference_perplexity"], rel=0.01)
        assert values["argmax_agreement"] > 0.97


def test_numerics_say_how_much_was_compared(results: list[Row]) -> None:
    rows = [row for row in results if row["metric"] == "perplexity"]
    assert [row["context"]["windows"] for row in rows] == [4, 4]
    assert all(row["context"]["tokens_scored"] >= 4 * NEW_TOKENS for row in rows)


@pytest.mark.parametrize("metric", ["export_peak_bytes", "mlir_bytes", "parameter_bytes", "vmfb_bytes", "compile_s"])
def test_what_work_took_is_measured_too(results: list[Row], metric: str) -> None:
    assert all(row["median"] > 0 for row in results if row["metric"] == metric)
    assert metric in {row["metric"] for row in results}


@pytest.mark.parametrize(
    ("filters", "key", "wanted"),
    [
        (("--model", "tiny-*"), "model", {"tiny-llama"}),
        (("--model", "llama*"), "model", set()),
        (("--variant", "*-TP2"), "variant", {TP2}),
        (("--variant", TP1), "variant", {TP1}),
        (("--target", "mi300x"), "target", {"mi300x"}),
        (("--metric", "itl_ms"), "metric", {"itl_ms"}),
        (("--metric", "itl_ms", "--target", "mi300x"), "metric", set()),
        (("--since", "1h"), "model", {"tiny-llama"}),
        (("--since", "2999-01-01"), "model", set()),
        (("--job", "{job}"), "model", {"tiny-llama"}),
    ],
)
def test_results_can_be_filtered(
    filled: Filled, results: list[Row], filters: tuple[str, ...], key: str, wanted: set[str]
) -> None:
    rows = filled.haloctl.json("results", *(word.format(job=filled.job[:6]) for word in filters))
    assert {row[key] for row in rows} == wanted
    if wanted:
        assert len(rows) == sum(row[key] in wanted for row in results)


def test_results_of_an_unknown_metric_are_refused(filled: Filled) -> None:
    done = filled.haloctl.run("results", "--metric", "ttft")
    assert done.code == 2
    assert "ttft_ms" in done.err


def test_results_of_no_time_are_refused(filled: Filled) -> None:
    done = filled.haloctl.run("results", "--since", "yesterday")
    assert done.code == 2
    assert "yesterday" in done.err


def test_results_in_csv_are_those_in_json(filled: Filled, results: list[Row]) -> None:
    rows = list(csv.DictReader(io.StringIO(filled.haloctl.answer("results", "--csv"))))
    assert [(row["task"], row["metric"], float(row["median"])) for row in rows] == [
        (row["task"], row["metric"], row["median"]) for row in results
    ]


def test_the_trackers_table_is_pasted_into_a_wiki(filled: Filled) -> None:
    table = filled.haloctl.answer("results", "--pivot", "date", "--markdown").splitlines()
    assert table[0].startswith("| variant")
    assert len([line for line in table if line.startswith(f"| {TP1} ")]) == 1
    assert "cells are (TTFT, ITL) in ms, medians over the runs of a column" in table


def test_results_answer_in_sql(filled: Filled) -> None:
    asked = "select variant, count(*) as n from results where metric = 'itl_ms' group by variant order by variant"
    assert filled.haloctl.json("query", asked) == [{"variant": TP1, "n": 1}, {"variant": TP2, "n": 1}]


def test_a_report_is_a_page_of_all_of_it(filled: Filled) -> None:
    page, text = (filled.haloctl.folder / name for name in ("page.html", "page.md"))
    filled.haloctl.answer("report", "-o", str(page), "-o", str(text))
    for words in (TP1, TP2, "model.vmfb", "Open failures", "this is the first report"):
        assert words in page.read_text()
        assert words in text.read_text()
    assert "this is the first report" not in filled.haloctl.answer("report")
