"""`python -m workers.llm.quantizers.torchao`: torchao's int4 weights, in groups with a scale and a zero point."""

import torch
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine

from workers.llm.program import run
from workers.llm.quantizers.request import read_request
from workers.llm.quantizers.weights import linear_modules, others_of
from workers.llm.quantizers.writing import Quantized, write
from workers.llm.reference import load_weights

LEAST, MOST = -8, 7


def main() -> None:
    """Quantize as the command line says."""
    request = read_request("torchao")
    model = load_weights(request.model, dtype=torch.float32).eval()
    weights = {name: module.weight.data for name, module in linear_modules(model).items()}
    columns = [weight.shape[1] for weight in weights.values()]
    group = request.group(columns)
    modules = {name: quantize(weight, group) for name, weight in weights.items()}
    layout = request.layout(columns, zero_points="int")
    write(request, "torchao", layout, modules, others_of(request, model, set(modules)), weights)


def quantize(weight: torch.Tensor, group: int) -> Quantized:
    """A weight [out, in] with a scale and a zero point for each group of columns."""
    block = (1, group)
    scale, zero = choose_qparams_affine(weight, MappingType.ASYMMETRIC, block, torch.int8, LEAST, MOST)
    values = quantize_affine(weight, block, scale, zero, torch.int8, LEAST, MOST)
    shape = (len(weight), -1)
    return Quantized(values, scale.view(shape), zero.view(shape).to(torch.int8))


if __name__ == "__main__":
    run(main)
