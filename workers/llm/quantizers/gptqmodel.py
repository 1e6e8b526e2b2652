"""`python -m workers.llm.quantizers.gptqmodel`: GPTQModel's GPTQ and AWQ, converted into the layout.

GPTQ packs eight rows of a transposed weight into an int32, AWQ eight columns in its own order. Both store zero points
from 0 to 15, the layout from -8 to 7. Both need groups: a scale per row is a single group.
Options: method (gptq, the default, or awq), symmetric (gptq only; awq is not), dampening (gptq only).
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

from workers.llm.command_line import run
from workers.llm.quantizers.model_tensors import linear_modules, read_tensors, save_model, stored_dtype
from workers.llm.quantizers.packed_formats import from_awq, from_gptq
from workers.llm.quantizers.quantize_request import QuantizeRequest, read_request
from workers.llm.quantizers.quantized_folder import write_quantized_model
from workers.llm.quantizers.quantized_weight import QuantizedWeight

ONE_GROUP = -1
PARTS = ("qweight", "qzeros", "scales", "g_idx")


def main() -> None:
    """Quantize the model as the command line says."""
    request = read_request("gptqmodel")
    torch.manual_seed(0)
    windows = request.calibration_windows()
    with TemporaryDirectory(dir=".") as scratch:
        original = save_model(request, Path(scratch, "model"))
        weights = {name: module.weight.data for name, module in linear_modules(original).items()}
        columns = [weight.shape[1] for weight in weights.values()]
        quantize_folder(request, Path(scratch, "model"), Path(scratch, "quantized"), columns, windows)
        stored = read_tensors(Path(scratch, "quantized"))
        written = json.loads(Path(scratch, "quantized", "config.json").read_text())["quantization_config"]
    modules = unpack_modules(request, stored, list(weights), written)
    has_zero_points = any(module.zero_point is not None for module in modules.values())
    layout = request.layout(columns, zero_points="int" if has_zero_points else None)
    packed = {f"{name}.{part}" for name in modules for part in PARTS}
    dtype = stored_dtype(request)
    others = {name: tensor.to(dtype) for name, tensor in stored.items() if name not in packed}
    write_quantized_model(request, "gptqmodel", layout, modules, others, weights, calibration_windows=len(windows))


def quantize_folder(
    request: QuantizeRequest, source: Path, target: Path, columns: list[int], windows: torch.Tensor
) -> None:
    """Run GPTQModel over the model in `source` and save the result in `target`."""
    group = request.choose_group_size(columns)
    group = group if request.granularity == "group" else ONE_GROUP
    settings = quantization_settings(request, group)
    model: Any = GPTQModel.load(str(source), settings, device="cpu", trust_remote_code=False)
    model.quantize([{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in windows], batch_size=1)
    model.save(str(target))


def quantization_settings(request: QuantizeRequest, group: int) -> Any:
    """Return GPTQModel's configuration."""
    if request.options.get("method") == "awq":
        return AWQConfig(bits=4, group_size=group, format=FORMAT.GEMM, sym=False)
    is_symmetric = request.options.get("symmetric", True)
    damping = {"damp_percent": request.options["dampening"]} if "dampening" in request.options else {}
    return GPTQConfig(bits=4, group_size=group, sym=is_symmetric, desc_act=False, format=FORMAT.GPTQ, **damping)


def unpack_modules(
    request: QuantizeRequest, stored: Mapping[str, torch.Tensor], names: list[str], written: Mapping[str, Any]
) -> dict[str, QuantizedWeight]:
    """Unpack the modules `names`, without zero points where all of them are zero.

    `written` is the quantization_config of the folder: GPTQ's old checkpoint format stores zero points that are one
    less.
    """
    is_awq = request.options.get("method") == "awq"
    unpack = from_awq if is_awq else from_gptq
    has_old_zeros = written.get("checkpoint_format", written.get("format")) == FORMAT.GPTQ.value and not is_awq
    modules = {}
    for name in names:
        parts = {part: stored[f"{name}.{part}"] for part in PARTS if f"{name}.{part}" in stored}
        modules[name] = unpack(parts, has_old_zeros)
    if any(bool(module.zero_point.any()) for module in modules.values() if module.zero_point is not None):
        return modules
    return {name: module.symmetric() for name, module in modules.items()}


if __name__ == "__main__":
    run(main, has_children=True)
