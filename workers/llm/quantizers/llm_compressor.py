"""`python -m workers.llm.quantizers.llm_compressor`: vLLM's llm-compressor, which writes the layout itself.

Options: method (int4: gptq, the default, or rtn), smoothquant (its strength; fp8 and int8), dampening (gptq only).
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

from workers.llm.command_line import run
from workers.llm.models.quantized_layout import KEY, LEFT_ALONE, quantization_config, read_layout
from workers.llm.numerics.reference import load_weights
from workers.llm.quantizers.model_tensors import linear_modules, read_tensors
from workers.llm.quantizers.quantize_request import QuantizeRequest, read_request
from workers.llm.quantizers.quantized_folder import OUTPUTS, write_report

DAMPENING = 0.01


def main() -> None:
    """Quantize the model as the command line says."""
    request = read_request("llm_compressor")
    torch.manual_seed(0)
    model = load_weights(request.model).eval()
    windows = request.calibration_windows()
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
        trust_remote_code_model=False,
    )
    model.save_pretrained(OUTPUTS, save_compressed=True)
    written = json.loads((OUTPUTS / "config.json").read_text())
    layout = read_layout(written, OUTPUTS / "config.json")
    assert layout is not None, f"{KEY} is missing from what llm-compressor wrote"
    size_bytes = sum(file.stat().st_size for file in OUTPUTS.glob("*.safetensors"))
    write_report(
        request,
        "llm-compressor",
        layout,
        read_tensors(OUTPUTS),
        weight_bytes=size_bytes,
        calibration_windows=len(windows),
    )


def modifiers(request: QuantizeRequest, groups: dict[str, Any]) -> Iterable[Any]:
    """Return the modifiers of the recipe, in the order in which they change the weights."""
    options = request.options
    if "smoothquant" in options:
        yield SmoothQuantModifier(smoothing_strength=options["smoothquant"])
    scheme: dict[str, Any] = {"config_groups": groups, "ignore": list(LEFT_ALONE)}
    if request.precision == "int4" and options.get("method", "gptq") == "gptq":
        yield GPTQModifier(**scheme, dampening_frac=options.get("dampening", DAMPENING))
    else:
        yield QuantizationModifier(**scheme)


if __name__ == "__main__":
    run(main, has_children=True)
