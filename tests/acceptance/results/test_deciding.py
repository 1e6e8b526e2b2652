"""compare and trend as their users type them."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.acceptance.conftest import Filled
from tests.acceptance.haloctl import Haloctl

TP1, TP2 = "tiny-llama-FP16-TP1", "tiny-llama-FP16-TP2"


def test_two_variants_are_compared_where_both_ran(filled: Filled) -> None:
    rows = filled.haloctl.json("compare", TP1, TP2)
    by_metric = {row["metric"]: row for row in rows if row["prompt_tokens"]}
    assert {"ttft_ms", "itl_ms"} <= set(by_metric)
    row = by_metric["ttft_ms"]
    assert (row["old_variant"], row["new_variant"], row["target"], row["places"]) == (TP1, TP2, "cpu", ["local"])
    assert (row["old_runs"], row["new_runs"]) == (1, 1)
    assert row["low"] < row["ratio"] < row["high"]
    assert row["ratio"] == pytest.approx(row["new"] / row["old"])
    assert row["verdict"] in ("faster", "slower", "equivalent", "inconclusive")
    text = filled.haloctl.answer("compare", TP1, TP2, "--metric", "ttft_ms")
    assert f"{TP1} / {TP2}" in text
    lines = csv.DictReader(io.StringIO(filled.haloctl.answer("compare", TP1, TP2, "--csv")))
    assert [line["verdict"] for line in lines] == [row["verdict"] for row in rows]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((TP1, TP1), 2, "both name the same runs"),
        ((TP1, "colour:red"), 2, "variant:"),
        ((TP1, TP2, "--metric", "speed"), 2, "ttft_ms"),
        ((TP1, "torch"), 5, "torch has no measurements of"),
        ((TP1, "tiny-lama-FP16-TP2"), 5, f"there is no such variant; did you mean {TP2}"),
        ((TP1, TP2, "--run", "--budget", "soon"), 2, "--budget"),
        (("engine:iree", "job:zz"), 4, "no job is called"),
    ],
)
def test_what_cannot_be_compared_is_told_in_words(
    filled: Filled, words: tuple[str, ...], code: int, message: str
) -> None:
    done = filled.haloctl.run("compare", *words)
    assert (done.code, done.out) == (code, "")
    assert message in done.err


def test_a_program_is_measured_against_itself(copied: Haloctl) -> None:
    """Two fresh runs of the same, interleaved: the budget ends it after the first round."""
    words = ("--metric", "ttft_ms", "--target", "cpu", "--run", "--budget", "1s")
    done = copied.run("compare", TP1, TP1, *words, "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)
    assert (row["old_variant"], row["new_variant"], row["old_runs"], row["new_runs"]) == (TP1, TP1, 1, 1)
    assert row["places"] == ["local"]
    assert "against itself, interleaved on local" in done.err
    assert "ttft_ms (batch 1, prompt 32, new " in done.err
    assert len(copied.json("results", "--metric", "ttft_ms", "--variant", TP1)) == 3


def test_variants_that_take_more_and_fewer_devices_are_measured_on_those_that_they_share(copied: Haloctl) -> None:
    """The budget ends it after the first round."""
    done = copied.run(
        "compare", TP2, TP1, "--metric", "ttft_ms", "--target", "cpu", "--run", "--budget", "1s", "--json"
    )
    assert done.code == 0, done.err
    assert [(row["old_variant"], row["new_variant"], row["old_runs"]) for row in json.loads(done.out)] == [
        (TP2, TP1, 1)
    ]


def test_a_trend_has_a_series_for_each_variant(filled: Filled, tmp_path: Path) -> None:
    all_series = filled.haloctl.json("trend", "ttft_ms", "--output", str(tmp_path / "ttft.svg"))
    assert [(series["variant"], series["place"], len(series["runs"]), series["changes"]) for series in all_series] == [
        (TP1, "local", 1, []),
        (TP2, "local", 1, []),
    ]
    assert (tmp_path / "ttft.svg").read_text().startswith("<?xml")
    assert TP1 in filled.haloctl.answer("trend", "vmfb_bytes", "--target", "mi300x")
    done = filled.haloctl.run("trend", "ttft")
    assert (done.code, "ttft_ms" in done.err) == (2, True)


def test_an_empty_database_has_nothing_to_decide(filled: Filled, tmp_path: Path) -> None:
    empty = filled.haloctl.but_with(HALOCTL_DATA=str(tmp_path / "data"))
    assert empty.json("trend", "itl_ms") == []
    assert "no measurements of itl_ms yet" in empty.run("trend", "itl_ms").err
    assert empty.run("compare", "iree", "torch").code == 5
