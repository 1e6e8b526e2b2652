"""Every quantizer in every precision that it makes, through quantize, export, compile and numerics on the CPU.

`pytest -m benchmark tests/performance/test_quantizers.py -s` builds every toolchain from the index (up to 1.6 GB)
and prints perplexity, KL, time and sizes; sharktank's route beside haloctl's is in the same table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.quantizers import MAKERS
from jobs.variants import QUANTIZED, Quantizer
from tests.acceptance.haloctl import Haloctl, opened, short_folder

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

STAGES = ["quantize", "export", "compile", "numerics"]
COMMON: dict[str, Any] = {
    "model": "tiny-llama",
    "stages": STAGES,
    "workload": {"batch": 1, "prompt_tokens": 64, "new_tokens": 32},
    "numerics": {"windows": 32},
}
JOB_S = 1800.0
#: makers that need no file of the user's
MADE = [name for name, maker in MAKERS.items() if not maker.refused and not maker.needed]
FIGURES = ("perplexity", "perplexity_increase_percent", "kl_mean", "quantize_s", "quantized_bytes")


@pytest.fixture
def haloctl(tmp_path: Path) -> Iterator[Haloctl]:
    with short_folder() as temporary, opened(tmp_path, temporary) as found:
        yield found


@pytest.mark.parametrize("name", MADE)
def test_each_maker_in_each_precision(haloctl: Haloctl, name: Quantizer) -> None:
    precisions = [precision.value for precision in sorted(MAKERS[name].offers)]
    variants = {"precision": precisions, "quantizer": name.value}
    rows = measured(haloctl, variants)
    show(haloctl, rows)
    assert len(rows) == len(precisions)


def test_the_shark_route_beside_haloctls(haloctl: Haloctl) -> None:
    low = [precision.value for precision in sorted(QUANTIZED & MAKERS[Quantizer.BREVITAS].offers.keys())]
    variants = {"precision": ["f32", "f16", *low], "quantizer": "brevitas", "exporter": ["haloctl", "sharktank"]}
    rows = measured(haloctl, variants)
    show(haloctl, rows)
    assert len(rows) == 2 * (2 + len(low))


def measured(haloctl: Haloctl, variants: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The figures of each variant of a job that ended well."""
    running = haloctl.start("submit", haloctl.job(name="makers", variants=variants, **COMMON), "--wait")
    assert running.process.wait(JOB_S) == 0, running.err
    rows: dict[str, dict[str, float]] = {}
    for found in haloctl.json("results"):
        if found["metric"] in FIGURES:
            rows.setdefault(found["variant"], {})[found["metric"]] = found["median"]
    return rows


def show(haloctl: Haloctl, rows: dict[str, dict[str, float]]) -> None:
    """One line for each variant, and what the toolchains take."""
    print(f"\n{'variant':46} {'perplexity':>16} {'KL':>9} {'quantize s':>10} {'MB':>6}")
    for variant, found in rows.items():
        perplexity = f"{found['perplexity']:.3f} ({found['perplexity_increase_percent']:+.2f}%)"
        time_s, size = found.get("quantize_s", 0), found.get("quantized_bytes", 0)
        print(f"{variant:46} {perplexity:>16} {found['kl_mean']:>9.2g} {time_s:>10.1f} {size / 1e6:>6.2f}", flush=True)
    for toolchain in haloctl.json("toolchains"):
        if toolchain.get("here"):
            print(f"toolchain {toolchain['name']}: {toolchain['here']['size_bytes'] / 1e6:.0f} MB", flush=True)
