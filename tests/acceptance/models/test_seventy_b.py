"""A model that fits on no machine is compiled in low precision for one that is not there, in little memory."""

import csv
import io

from tests.acceptance.haloctl import Haloctl

GIB = 1 << 30

SEVENTY_B = {
    "name": "four layers of 70B",
    "model": "shape:llama3.1-70b",
    "overrides": {"num_hidden_layers": 4},
    "variants": {"precision": "int8", "tp": 8, "target": "mi300x"},
    "stages": ["export", "compile"],
}


def test_seventy_b_in_int8_over_eight_mi300x_compiles_within_four_gib(fresh: Haloctl) -> None:
    done = fresh.run("submit", fresh.job(**SEVENTY_B), "--wait")
    assert done.code == 0, done.err
    (row,) = fresh.json("matrix")
    assert (row["variant"], row["target"]) == ("llama3.1-70B-L4-INT8-TP8", "mi300x")
    assert {stage: cell["state"] for stage, cell in row["stages"].items()} == {
        "export": "succeeded",
        "compile": "succeeded",
    }
    assert row["stages"]["compile"]["warnings"] == []

    values = {
        median["metric"]: float(median["median"])
        for median in csv.DictReader(io.StringIO(fresh.answer("results", "--csv")))
    }
    assert 0 < values["export_peak_bytes"] < 4 * GIB
    assert 0 < values["compile_peak_bytes"] < 4 * GIB
    assert 0 < values["mfma_int8_prefill"] < values["mfma_prefill"]  # attention is in f16
    assert values["parameter_bytes"] == 0
