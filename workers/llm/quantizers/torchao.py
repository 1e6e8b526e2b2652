"""`python -m workers.llm.quantizers.torchao`: torchao's int4 weights, in groups with a scale and a zero point."""

import torch
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine

from workers.llm.command_line import run
from workers.llm.numerics.reference import load_weights
from workers.llm.quantizers.model_tensors import linear_modules, unquantized_tensors
from workers.llm.quantizers.quantize_request import read_request
from workers.llm.quantizers.quantized_folder import write_quantized_model
from workers.llm.quantizers.quantized_weight import QuantizedWeight

LEAST, MOST = -8, 7


def main() -> None:
    """Quantize the model as the command line says."""
    request = read_request("torchao")
    model = load_weights(request.model, dtype=torch.float32).eval()
    weights = {name: module.weight.data for name, module in linear_modules(model).items()}
    columns = [weight.shape[1] for weight in weights.values()]
    group = request.choose_group_size(columns)
    modules = {name: quantize_weight(weight, group) for name, weight in weights.items()}
    layout = request.layout(columns, zero_points="int")
    others = unquantized_tensors(request, model, set(modules))
    write_quantized_model(request, "torchao", layout, modules, others, weights)


def quantize_weight(weight: torch.Tensor, group: int) -> QuantizedWeight:
    """Quantize a weight [out, in] with a scale and a zero point for each group of columns."""
    block = (1, group)
    scale, zero = choose_qparams_affine(weight, MappingType.ASYMMETRIC, block, torch.int8, LEAST, MOST)
    values = quantize_affine(weight, block, scale, zero, torch.int8, LEAST, MOST)
    shape = (len(weight), -1)
    return QuantizedWeight(values, scale.view(shape), zero.view(shape).to(torch.int8))


if __name__ == "__main__":
    run(main)
