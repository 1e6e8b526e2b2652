"""`python -m workers.llm.quantizers.gptqmodel`: GPTQModel's GPTQ and AWQ; what it writes is brought into the layout.

GPTQ packs eight rows of a transposed weight into an int32, AWQ eight columns in an order of its own; both keep zero
points from 0 to 15 where the layout has them from -8 to 7. Both need groups; a scale a row is one group.
Options: method (gptq, the default, or awq), symmetric (of gptq; awq is not), dampening (of gptq).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")

import torch
from gptqmodel import GPTQModel
from gptqmodel.quantization.config import FORMAT, AWQConfig, GPTQConfig
from safetensors.torch import load_file

from workers.llm.program import run
from workers.llm.quantizers.packed import from_awq, from_gptq
from workers.llm.quantizers.request import Request, read_request
from workers.llm.quantizers.weights import linear_modules, save_model
from workers.llm.quantizers.writing import write

ONE_GROUP = -1
PARTS = ("qweight", "qzeros", "scales", "g_idx")


def main() -> None:
    """Quantize as the command line says."""
    request = read_request("gptqmodel")
    torch.manual_seed(0)
    windows = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in request.tokens_of_windows()]
    with TemporaryDirectory(dir=".") as scratch:
        source, target = Path(scratch, "model"), Path(scratch, "quantized")
        original = save_model(request, source)
        weights = {name: module.weight.data for name, module in linear_modules(original).items()}
        group = request.group([weight.shape[1] for weight in weights.values()])
        group = group if request.granularity == "group" else ONE_GROUP
        model: Any = GPTQModel.load(str(source), config(request, group), device="cpu")
        model.quantize(windows, batch_size=1)
        model.save(str(target))
        stored = {name: tensor for file in target.glob("*.safetensors") for name, tensor in load_file(file).items()}
        said = json.loads((target / "config.json").read_text())["quantization_config"]
    is_awq = request.options.get("method") == "awq"
    unpack = from_awq if is_awq else from_gptq
    has_old_zeros = said.get("checkpoint_format", said.get("format")) == FORMAT.GPTQ.value and not is_awq
    modules = {name: unpack(parts_of(stored, name), has_old_zeros) for name in weights}
    is_symmetric = not any(bool(one.zero_point.any()) for one in modules.values() if one.zero_point is not None)
    if is_symmetric:
        modules = {name: one.symmetric() for name, one in modules.items()}
    columns = [weight.shape[1] for weight in weights.values()]
    layout = request.layout(columns, zero_points=None if is_symmetric else "int")
    taken = {f"{name}.{part}" for name in modules for part in PARTS}
    dtype = getattr(request.model.config, "dtype", None) or torch.float32
    others = {name: tensor.to(dtype) for name, tensor in stored.items() if name not in taken}
    write(request, "gptqmodel", layout, modules, others, weights, calibration_windows=len(windows))


def config(request: Request, group: int) -> Any:
    """What GPTQModel is told."""
    if request.options.get("method") == "awq":
        return AWQConfig(bits=4, group_size=group, format=FORMAT.GEMM, sym=False)
    is_symmetric = request.options.get("symmetric", True)
    how = {"damp_percent": request.options["dampening"]} if "dampening" in request.options else {}
    return GPTQConfig(bits=4, group_size=group, sym=is_symmetric, desc_act=False, format=FORMAT.GPTQ, **how)


def parts_of(stored: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The tensors of one module."""
    return {part: stored[f"{name}.{part}"] for part in PARTS if f"{name}.{part}" in stored}


if __name__ == "__main__":
    run(main)
