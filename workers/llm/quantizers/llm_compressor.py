"""`python -m workers.llm.quantizers.llm_compressor`: vLLM's llm-compressor; it writes the layout by itself.

Options: method (int4: gptq, the default, or rtn), smoothquant (its strength; fp8 and int8), dampening (of gptq).
"""

import json
from collections.abc import Iterable
from typing import Any

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.smoothquant import SmoothQuantModifier
from safetensors.torch import load_file

from workers.llm.program import run
from workers.llm.quantized_layout import KEY, LEFT_ALONE, quantization_config, read_layout
from workers.llm.quantizers.request import Request, read_request
from workers.llm.quantizers.weights import linear_modules
from workers.llm.quantizers.writing import OUTPUTS, write_report
from workers.llm.reference import load_weights

DAMPENING = 0.01


def main() -> None:
    """Quantize as the command line says."""
    request = read_request("llm_compressor")
    torch.manual_seed(0)
    model = load_weights(request.model).eval()
    windows = request.tokens_of_windows()
    data = Dataset.from_dict({"input_ids": windows.tolist(), "attention_mask": torch.ones_like(windows).tolist()})
    columns = [module.in_features for module in linear_modules(model).values()]
    config = quantization_config(request.layout(columns))
    oneshot(
        model=model,
        dataset=data,
        recipe=list(modifiers(request, config["config_groups"])),
        max_seq_length=request.tokens,
        num_calibration_samples=request.windows,
        shuffle_calibration_samples=False,
    )
    model.save_pretrained(OUTPUTS, save_compressed=True)
    files = sorted(OUTPUTS.glob("*.safetensors"))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    written = json.loads((OUTPUTS / "config.json").read_text())
    layout = read_layout(written, OUTPUTS / "config.json")
    assert layout is not None, f"{KEY} is missing from what llm-compressor wrote"
    size = sum(file.stat().st_size for file in files)
    write_report(request, "llm-compressor", layout, tensors, weight_bytes=size, calibration_windows=len(windows))


def modifiers(request: Request, groups: dict[str, Any]) -> Iterable[Any]:
    """The recipe: what is done to the weights, one after the other."""
    options = request.options
    if "smoothquant" in options:
        yield SmoothQuantModifier(smoothing_strength=options["smoothquant"])
    how: dict[str, Any] = {"config_groups": groups, "ignore": list(LEFT_ALONE)}
    if request.precision == "int4" and options.get("method", "gptq") == "gptq":
        yield GPTQModifier(**how, dampening_frac=options.get("dampening", DAMPENING))
    else:
        yield QuantizationModifier(**how)


if __name__ == "__main__":
    run(main)
