"""The SHARK route beside haloctl's own: numerics, TTFT and ITL of one model in one job on one device, and a pipeline.

`pytest -m benchmark tests/performance/test_shark_route.py -s` builds the toolchain shark-3.8 from the index (1.5 GB)
and prints each variant's distance from eager and its times; then what sharktank makes of scaled rotary embeddings.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.haloctl import Haloctl, opened, short_folder
from tests.performance.measured_jobs import TIMES, measured, show

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

FIGURES = ("max_logit_diff", "perplexity", "perplexity_increase_percent")
SHOWN = (*FIGURES, *TIMES)
#: llama 3.1's
SCALING = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def haloctl(tmp_path: Path) -> Iterator[Haloctl]:
    with short_folder() as temporary, opened(tmp_path, temporary, HALOCTL_CPU_DEVICES="2") as cli:
        yield cli


def test_both_routes_and_a_pipeline_are_right_and_timed_side_by_side(haloctl: Haloctl) -> None:
    variants = {
        "precision": "f32",
        "kv_cache": ["contiguous", "paged"],
        "pp": [1, 2],
        "exporter": ["haloctl", "sharktank"],
        "exclude": [{"exporter": "haloctl", "pp": 2}],
    }
    stages = ["export", "compile", "invoke", "numerics", "benchmark"]
    rows = measured(
        haloctl,
        SHOWN,
        name="routes",
        variants=variants,
        stages=stages,
        benchmark={"exclusive": False, "repetitions": 9},
    )
    show(rows, SHOWN)
    assert list(rows) == [
        "tiny-llama-FP32-TP1",
        "tiny-llama-FP32-paged-TP1",
        "tiny-llama-FP32-paged-TP1-PP2-sharktank",
        "tiny-llama-FP32-paged-TP1-sharktank",
    ]
    for medians in rows.values():
        assert medians["max_logit_diff"] < 1e-3
        assert set(TIMES) <= set(medians)


def test_what_sharktank_leaves_out_of_a_scaled_rotary_embedding_is_said_and_measured(haloctl: Haloctl) -> None:
    variants = {"precision": "f32", "exporter": ["haloctl", "sharktank"]}
    stages = ["export", "compile", "numerics"]
    rows = measured(
        haloctl, SHOWN, 3, name="routes", variants=variants, stages=stages, overrides={"rope_parameters": SCALING}
    )
    show(rows, SHOWN)
    assert "sharktank 3.8 leaves out the model's rope scaling (llama3: factor 8" in str(haloctl.json("matrix"))
    right, left_out = sorted(medians["max_logit_diff"] for medians in rows.values())
    assert right < 1e-3 < left_out
