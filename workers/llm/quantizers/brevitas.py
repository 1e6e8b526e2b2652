"""`python -m workers.llm.quantizers.brevitas`: Brevitas' own program, brevitas_ptq_llm, exported for shark-ai.

It reads its calibration text as the data set wikitext-2 from a folder beside it: nothing is fetched. What it writes,
dataset.irpa, is kept for the exporter sharktank, with the rope base that it leaves out: sharktank 3.8 would take 5e5.
The layout's tensors come from the same file. Options are brevitas_ptq_llm's own, with `act_equalization: layerwise` as
SmoothQuant whose factors stay before each module, `bias_corr`, after which every linear module of the model has a bias,
and `format: fnuz` for fp8 as gfx942 has it: the layout has no place for its largest value, which becomes the next
smaller one there.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file
from sharktank.types import Dataset

from workers.llm import shark_model
from workers.llm.added_biases import with_biases
from workers.llm.program import BadInput, Failed, run
from workers.llm.quantized_layout import LEFT_ALONE, QuantizedLayout, Scheme
from workers.llm.quantizers.request import Request, read_request
from workers.llm.quantizers.writing import OUTPUTS, Quantized, write

DATASET = "dataset.irpa"
SPLITS = ("train", "validation", "test")
CARD = "---\nconfigs:\n- config_name: wikitext-2-raw-v1\n  data_files:\n{}---\n"
#: options that take a value; the others are switches
VALUED = ("awq", "act_equalization", "act_equalization_alpha")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
FP8_FORMATS = {"ocp": "float_ocp_e4m3", "fnuz": "float_fnuz_e4m3"}
FNUZ_OVER_FN = 0.5  #: the same bits stand for half as much
LARGEST_FN_BITS = 0x7E
HEAD_FACTORS = "lm_head.premul_input"
PARTS = ("weight", "q_input", "premul_input")  #: of a linear module, as sharktank names them


def main() -> None:
    """Quantize as the command line says."""
    request = read_request("brevitas")
    OUTPUTS.mkdir(exist_ok=True)
    dataset = (OUTPUTS / DATASET).absolute()
    with TemporaryDirectory(dir=".") as scratch:
        folder = Path(scratch).absolute()
        shark_model.write_model(request.model, folder / "model")
        write_text(request, folder)
        call_brevitas(request, folder)
        shark_model.repair(folder / "exported" / DATASET, dataset, request.model)
    convert(request, Dataset.load(dataset))


def write_text(request: Request, folder: Path) -> None:
    """The calibration text as the data set that brevitas_ptq_llm loads."""
    data = folder / "Salesforce" / "wikitext"
    data.mkdir(parents=True)
    text = request.text.read_text(encoding="utf-8")
    files = "".join(f"  - split: {split}\n    path: {split}.txt\n" for split in SPLITS)
    (data / "README.md").write_text(CARD.format(files))
    for split in SPLITS:
        (data / f"{split}.txt").write_text(text, encoding="utf-8")


def call_brevitas(request: Request, folder: Path) -> None:
    """Run brevitas_ptq_llm in a folder; raises Failed with its last words."""
    argv = [sys.executable, "-m", "workers.llm.quantizers.brevitas_ptq_llm", *flags(request)]
    done = subprocess.run(argv, cwd=folder, env={**os.environ, **OFFLINE}, check=False)
    if done.returncode or not (folder / "exported" / DATASET).is_file():
        raise Failed(f"brevitas_ptq_llm ended with {done.returncode} and wrote no {DATASET}", 1)


def flags(request: Request) -> Iterator[str]:
    """The command line of brevitas_ptq_llm."""
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


def convert(request: Request, dataset: Any) -> None:
    """Write the layout from what Brevitas has exported."""
    assert request.precision is not None and request.granularity is not None
    dtype = getattr(torch, shark_model.dtype_of(request.model))
    theta = {shark_model.name_of(name): tensor for name, tensor in dataset.root_theta.flatten().items()}
    modules = {
        name.removesuffix(".weight"): taken(name.removesuffix(".weight"), theta)
        for name, tensor in theta.items()
        if hasattr(tensor, "unpack") and "d" in getattr(tensor.unpack(), "planes", {})
    }
    taken_names = {f"{name}.{part}" for name in modules for part in PARTS}
    others = {name: tensor.as_torch().clone().to(dtype) for name, tensor in theta.items() if name not in taken_names}
    if HEAD_FACTORS in others:
        others["lm_head.weight"] *= others.pop(HEAD_FACTORS).flatten()
    if not others.get("lm_head.bias", torch.ones(1)).any():
        del others["lm_head.bias"]  # which it gives to every module, and never corrects
    is_smoothed = any(one.pre_quant_scale is not None for one in modules.values())
    scheme = Scheme(request.precision, request.granularity, has_pre_quant_scale=is_smoothed)
    if any(name.endswith(".bias") for name in others):
        request = replace(request, model=with_biases(request.model))
    layout = QuantizedLayout(scheme, LEFT_ALONE)
    write(request, "brevitas", layout, modules, others, originals(request, modules))


def originals(request: Request, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The model's own weights, by module."""
    assert request.model.folder is not None
    files = request.model.folder.glob("*.safetensors")
    stored = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return {name: stored[f"{name}.weight"] for name in names}


def taken(name: str, theta: Mapping[str, Any]) -> Quantized:
    """A linear module as Brevitas has exported it."""
    weight, inputs = theta[f"{name}.weight"], theta[f"{name}.q_input"]
    smoothing = theta.get(f"{name}.premul_input")
    planes: Mapping[str, torch.Tensor] = weight.unpack().planes
    values, scale = planes["qs"].clone(), planes["d"].clone().float()
    if "m" in planes:
        raise BadInput(f"{weight.name} has zero points")
    input_scale = inputs._reciprocal_scale.clone().float().reshape(1)  # sharktank shows it nowhere else
    if values.dtype is torch.float8_e4m3fnuz:
        bits = values.view(torch.uint8)
        bits = torch.where(bits & 0x7F == 0x7F, (bits & 0x80) | LARGEST_FN_BITS, bits)
        values, scale, input_scale = bits.view(torch.float8_e4m3fn), scale * FNUZ_OVER_FN, input_scale * FNUZ_OVER_FN
    scale = scale.reshape((1,) if scale.numel() == 1 else (len(values), 1))
    before = None if smoothing is None else smoothing.as_torch().clone().float().reshape(1, -1)
    return Quantized(values, scale, None, input_scale, before)


if __name__ == "__main__":
    run(main)
