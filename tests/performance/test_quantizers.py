"""Every quantizer, with its options, in every precision that it makes, through quantize, export, compile and numerics.

`pytest -m benchmark -s tests/performance/test_quantizers.py` builds every toolchain from the index (up to 1.6 GB), and
prints perplexity, KL, time and sizes; sharktank's route beside haloctl's is in the same table.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jobs.models import SHIPPED
from jobs.quantizers import QUANTIZERS
from jobs.variants import Precision
from tests.acceptance.haloctl import Haloctl, opened, short_folder
from workers.toolchains import uv

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

COMMON: dict[str, Any] = {
    "model": "tiny-llama",
    "stages": ["quantize", "export", "compile", "numerics"],
    "workload": {"batch": 1, "prompt_tokens": 64, "new_tokens": 32},
    "numerics": {"windows": 32},
}
JOB_S = 1800.0
FIGURES = ("perplexity", "perplexity_increase_percent", "kl_mean", "quantize_s", "parameter_bytes")
FP8, INT8, INT4 = Precision.FP8, Precision.INT8, Precision.INT4
LLAMA_CPP = Path(__file__).parent / "llama_cpp.py"
LLAMA_CPP_PACKAGES = ("cyllama==0.2.18", "gguf==0.18.0", "safetensors")


@dataclass(frozen=True)
class Case:
    """One job: a quantizer with options, in some of the precisions that it makes."""

    quantizer: str
    precisions: Sequence[Precision]
    options: dict[str, Any] = field(default_factory=dict)
    exporters: Sequence[str] = ("haloctl",)

    def __str__(self) -> str:
        return "-".join(
            [self.quantizer, *(f"{key}={value}" for key, value in self.options.items()), *self.exporters[1:]]
        )

    @property
    def variants(self) -> dict[str, Any]:
        """The variants of its job."""
        precisions = [precision.value for precision in self.precisions]
        return {"precision": precisions, "quantizer": self.quantizer, "exporter": list(self.exporters)}


#: quantizers that need no file of the user's
MADE = [name for name, row in QUANTIZERS.items() if not row.unusable and not row.required]
CASES = [
    *(Case(name, sorted(QUANTIZERS[name].schemes)) for name in MADE if name != "brevitas"),
    Case("brevitas", (Precision.F32, Precision.F16, FP8, INT8), exporters=("haloctl", "sharktank")),
    Case("haloctl", (INT8, INT4), {"clip": True}),
    Case("llm-compressor", (FP8, INT8), {"smoothquant": 0.5}),
    Case("llm-compressor", (INT4,), {"method": "rtn"}),
    Case("brevitas", (FP8, INT8), {"act_equalization": "layerwise"}),
    Case("brevitas", (FP8, INT8), {"gptq": True}),
    Case("brevitas", (FP8, INT8), {"bias_corr": True}),
    Case("brevitas", (INT8,), {"awq": "scale"}),
    Case("gptqmodel", (INT4,), {"method": "awq"}),
    Case("gguf", (INT4,), {"file": "Q4_0.gguf"}),
    Case("gguf", (INT4,), {"file": "Q4_1.gguf"}),
    Case("gguf", (INT4,), {"file": "Q4_K_M.gguf"}),
    Case("gguf", (FP8, INT8), {"file": "Q8_0.gguf"}),
]


@pytest.fixture(scope="module")
def haloctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Haloctl]:
    """One data folder for all: toolchains are built once."""
    with short_folder() as temporary, opened(tmp_path_factory.mktemp("quantizers"), temporary) as cli:
        make_gguf_files(cli.folder)
        yield cli


def make_gguf_files(folder: Path) -> None:
    """Write the GGUF files of the shipped model that the cases name."""
    kinds = sorted({Path(case.options["file"]).stem for case in CASES if "file" in case.options})
    packages = [f"--with={package}" for package in LLAMA_CPP_PACKAGES]
    program = ["python", str(LLAMA_CPP), str(SHIPPED / "tiny-llama"), str(folder), *kinds]
    environment = {**os.environ, **uv.environment(folder / "uv")}
    command = [uv.path(), "run", "--quiet", "--isolated", "--no-project", *packages, *program]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_quantizer_with_its_options(haloctl: Haloctl, case: Case) -> None:
    options = {"quantize": {"options": {case.quantizer: case.options}}} if case.options else {}
    running = haloctl.start(
        "submit", haloctl.job(name=str(case), variants=case.variants, **COMMON, **options), "--wait"
    )
    assert running.process.wait(JOB_S) == 0, running.err
    rows: dict[str, dict[str, float]] = {}
    (job,) = [job["job"] for job in haloctl.json("list") if job["name"] == str(case)]
    for row in haloctl.json("results", "--job", job):
        if row["metric"] in FIGURES:
            rows.setdefault(row["variant"], {})[row["metric"]] = row["median"]
    show(case, rows)
    assert len(rows) == len(case.precisions) * len(case.exporters)


def show(case: Case, rows: dict[str, dict[str, float]]) -> None:
    """One line for each variant."""
    options = ", ".join(f"{key}: {value}" for key, value in case.options.items())
    for variant, medians in rows.items():
        what = f"{variant.removeprefix('tiny-llama-').replace('-TP1', '')} {options}"
        perplexity = f"perplexity {medians['perplexity']:.3f} ({medians['perplexity_increase_percent']:+.2f}%)"
        time_s, size = medians.get("quantize_s", 0), medians["parameter_bytes"]
        cost = f"quantized in {time_s:5.1f} s  parameters {size / 1e6:.2f} MB"
        print(f"\n{what:56} {perplexity}  KL {medians['kl_mean']:8.2g}  {cost}", end="", flush=True)


def test_the_toolchains_that_this_took(haloctl: Haloctl) -> None:
    for toolchain in haloctl.json("toolchains"):
        if toolchain.get("here"):
            print(
                f"\ntoolchain {toolchain['name']}: {toolchain['here']['size_bytes'] / 1e6:.0f} MB", end="", flush=True
            )
