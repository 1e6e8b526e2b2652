"""`python -m workers.llm.quantizers.brevitas`: Brevitas' program brevitas_ptq_llm, exported for shark-ai.

It reads the calibration text as the data set wikitext-2 from a folder beside it; nothing is fetched. Its output,
dataset.irpa, is kept for the exporter sharktank, with the model's rope base added, for which sharktank 3.8 would
otherwise take 5e5. The layout's tensors are converted from the same file.

Options are those of brevitas_ptq_llm. `act_equalization: layerwise` is SmoothQuant whose factors stay in front of each
module. `bias_corr` gives every linear module a bias. `format: fnuz` is the fp8 of gfx942, whose largest value the
layout cannot hold: it becomes the next smaller one.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sharktank.types import Dataset

from workers.llm.command_line import BadInput, ProgramFailed, run
from workers.llm.models.added_biases import with_biases
from workers.llm.models.quantized_layout import LEFT_ALONE, QuantizationScheme, QuantizedLayout
from workers.llm.quantizers.model_tensors import read_tensors
from workers.llm.quantizers.quantize_request import QuantizeRequest, read_request
from workers.llm.quantizers.quantized_folder import OUTPUTS, write_quantized_model
from workers.llm.quantizers.quantized_weight import QuantizedWeight
from workers.llm.shark import shark_model

DATASET = "dataset.irpa"
SPLITS = ("train", "validation", "test")
CARD = "---\nconfigs:\n- config_name: wikitext-2-raw-v1\n  data_files:\n{}---\n"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
FP8_FORMATS = {"ocp": "float_ocp_e4m3", "fnuz": "float_fnuz_e4m3"}
FNUZ_OVER_FN = 0.5  #: the value of the same bits in fnuz, relative to fn
LARGEST_FN_BITS = 0x7E
HEAD_FACTORS = "lm_head.premul_input"
PARTS = ("weight", "q_input", "premul_input")  #: sharktank's names for the tensors of a linear module


def main() -> None:
    """Quantize the model as the command line says."""
    request = read_request("brevitas")
    OUTPUTS.mkdir(exist_ok=True)
    dataset = (OUTPUTS / DATASET).absolute()
    with TemporaryDirectory(dir=".") as scratch:
        folder = Path(scratch).absolute()
        shark_model.write_model(request.model, folder / "model")
        write_calibration_data(request.text, folder)
        run_brevitas(request, folder)
        shark_model.repair(folder / "exported" / DATASET, dataset, request.model)
    convert(request, Dataset.load(dataset))


def write_calibration_data(text_file: Path, folder: Path) -> None:
    """Write the calibration text as the data set that brevitas_ptq_llm loads."""
    data = folder / "Salesforce" / "wikitext"
    data.mkdir(parents=True)
    text = text_file.read_text(encoding="utf-8")
    files = "".join(f"  - split: {split}\n    path: {split}.txt\n" for split in SPLITS)
    (data / "README.md").write_text(CARD.format(files))
    for split in SPLITS:
        (data / f"{split}.txt").write_text(text, encoding="utf-8")


def run_brevitas(request: QuantizeRequest, folder: Path) -> None:
    """Run brevitas_ptq_llm in `folder`. Raises ProgramFailed when it writes no data set."""
    argv = [sys.executable, "-m", "workers.llm.quantizers.brevitas_ptq_llm", *flags(request)]
    process = subprocess.run(argv, cwd=folder, env={**os.environ, **OFFLINE}, stdin=subprocess.DEVNULL, check=False)
    if process.returncode or not (folder / "exported" / DATASET).is_file():
        raise ProgramFailed(f"brevitas_ptq_llm ended with {process.returncode} and wrote no {DATASET}", 1)


def flags(request: QuantizeRequest) -> Iterator[str]:
    """Yield the command line of brevitas_ptq_llm."""
    options = dict(request.options)
    form = FP8_FORMATS[options.pop("format", "ocp")] if request.precision == "fp8" else "int"
    yield from ("--model=./model", "--dtype=float32", f"--nsamples={request.windows}", f"--seqlen={request.tokens}")
    for part in ("input", "weight"):
        yield from (f"--{part}-bit-width=8", f"--{part}-quant-format={form}", f"--{part}-quant-type=sym")
    yield from ("--input-quant-granularity=per_tensor", "--input-scale-type=static", "--act-calibration")
    yield f"--weight-quant-granularity=per_{request.granularity}"
    yield from ("--export-target=shark", "--export-prefix=exported")
    if "awq" in options:
        yield f"--awq-{options.pop('awq')}"
    for name, value in options.items():
        if value is not False:
            yield f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")


def convert(request: QuantizeRequest, dataset: Any) -> None:
    """Convert the data set that Brevitas exported into the layout, and write it."""
    assert request.precision is not None and request.granularity is not None
    dtype = getattr(torch, shark_model.dtype_of(request.model))
    theta = {shark_model.name_of(name): tensor for name, tensor in dataset.root_theta.flatten().items()}
    modules = {
        name.removesuffix(".weight"): read_module(name.removesuffix(".weight"), theta)
        for name, tensor in theta.items()
        if hasattr(tensor, "unpack") and "d" in getattr(tensor.unpack(), "planes", {})
    }
    converted = {f"{name}.{part}" for name in modules for part in PARTS}
    others = {name: tensor.as_torch().clone().to(dtype) for name, tensor in theta.items() if name not in converted}
    if HEAD_FACTORS in others:
        others["lm_head.weight"] *= others.pop(HEAD_FACTORS).flatten()
    if not others.get("lm_head.bias", torch.ones(1)).any():
        del others["lm_head.bias"]  # every module is given one, and this one is never corrected
    is_smoothed = any(weight.pre_quant_scale is not None for weight in modules.values())
    scheme = QuantizationScheme(request.precision, request.granularity, has_pre_quant_scale=is_smoothed)
    if any(name.endswith(".bias") for name in others):
        request = replace(request, model=with_biases(request.model))
    layout = QuantizedLayout(scheme, LEFT_ALONE)
    assert request.model.folder is not None
    original = read_tensors(request.model.folder)
    weights = {name: original[f"{name}.weight"] for name in modules}
    write_quantized_model(request, "brevitas", layout, modules, others, weights)


def read_module(name: str, theta: Mapping[str, Any]) -> QuantizedWeight:
    """Return a linear module as Brevitas exported it. Raises BadInput for one with zero points."""
    weight, inputs = theta[f"{name}.weight"], theta[f"{name}.q_input"]
    smoothing = theta.get(f"{name}.premul_input")
    planes: Mapping[str, torch.Tensor] = weight.unpack().planes
    values, scale = planes["qs"].clone(), planes["d"].clone().float()
    if "m" in planes:
        raise BadInput(f"{weight.name} has zero points")
    input_scale = inputs._reciprocal_scale.clone().float().reshape(1)  # sharktank has no public attribute for it
    if values.dtype is torch.float8_e4m3fnuz:
        bits = values.view(torch.uint8)
        bits = torch.where(bits & 0x7F == 0x7F, (bits & 0x80) | LARGEST_FN_BITS, bits)
        values, scale, input_scale = bits.view(torch.float8_e4m3fn), scale * FNUZ_OVER_FN, input_scale * FNUZ_OVER_FN
    scale = scale.reshape((1,) if scale.numel() == 1 else (len(values), 1))
    pre_quant_scale = None if smoothing is None else smoothing.as_torch().clone().float().reshape(1, -1)
    return QuantizedWeight(values, scale, None, input_scale, pre_quant_scale)


if __name__ == "__main__":
    run(main, has_children=True)
