"""The SHARK route beside haloctl's own: numerics, TTFT and ITL of one model in one job on one device, and a pipeline.

`pytest -m benchmark tests/performance/test_shark_route.py -s` builds the toolchain shark-3.8 from the index (1.5 GB)
and prints each variant's distance from eager and its times; then what sharktank makes of scaled rotary embeddings.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.haloctl import Haloctl, opened, short_folder

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

WORKLOAD = {"batch": 1, "prompt_tokens": 64, "new_tokens": 32}
FIGURES = ("max_logit_diff", "perplexity", "perplexity_increase_percent")
TIMES = ("ttft_ms", "itl_ms", "generation_ttft_ms", "itl_mean_ms")
JOB_S = 2400.0
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
    with short_folder() as temporary, opened(tmp_path, temporary, HALOCTL_CPU_DEVICES="2") as found:
        yield found


def test_both_routes_and_a_pipeline_are_right_and_timed_side_by_side(haloctl: Haloctl) -> None:
    variants = {
        "precision": "f32",
        "kv_cache": ["contiguous", "paged"],
        "pp": [1, 2],
        "exporter": ["haloctl", "sharktank"],
        "exclude": [{"exporter": "haloctl", "pp": 2}],
    }
    stages = ["export", "compile", "invoke", "numerics", "benchmark"]
    rows = measured(haloctl, variants=variants, stages=stages, benchmark={"quiet": False, "repetitions": 9})
    show(rows)
    assert list(rows) == [
        "tiny-llama-FP32-TP1",
        "tiny-llama-FP32-paged-TP1",
        "tiny-llama-FP32-paged-TP1-PP2-sharktank",
        "tiny-llama-FP32-paged-TP1-sharktank",
    ]
    for found in rows.values():
        assert found["max_logit_diff"] < 1e-3
        assert set(TIMES) <= set(found)


def test_what_sharktank_leaves_out_of_a_scaled_rotary_embedding_is_said_and_measured(haloctl: Haloctl) -> None:
    variants = {"precision": "f32", "exporter": ["haloctl", "sharktank"]}
    stages = ["export", "compile", "numerics"]
    rows = measured(haloctl, 3, variants=variants, stages=stages, overrides={"rope_parameters": SCALING})
    show(rows)
    assert "sharktank 3.8 leaves out the model's rope scaling (llama3: factor 8" in str(haloctl.json("matrix"))
    right, left_out = sorted(found["max_logit_diff"] for found in rows.values())
    assert right < 1e-3 < left_out


def measured(haloctl: Haloctl, code: int = 0, **job: Any) -> dict[str, dict[str, float]]:
    """The medians of each variant of a job that ended so."""
    path = haloctl.job(name="routes", model="tiny-llama", workload=WORKLOAD, **job)
    running = haloctl.start("submit", path, "--wait")
    assert running.process.wait(JOB_S) == code, running.err
    rows: dict[str, dict[str, float]] = {}
    for found in haloctl.json("results"):
        if found["metric"] in (*FIGURES, *TIMES):
            rows.setdefault(found["variant"], {})[found["metric"]] = found["median"]
    return dict(sorted(rows.items()))


def show(rows: dict[str, dict[str, float]]) -> None:
    """One line for each variant."""
    print(f"\n{'variant':46}" + "".join(f"{metric:>28}" for metric in (*FIGURES, *TIMES)))
    for variant, found in rows.items():
        print(f"{variant:46}" + "".join(f"{found.get(metric, float('nan')):>28.4g}" for metric in (*FIGURES, *TIMES)))
