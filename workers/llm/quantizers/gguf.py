"""`python -m workers.llm.quantizers.gguf`: weights that llama.cpp has quantized, from a GGUF file of the same model.

Config, tokenizer and calibration are the model's. int4 keeps Q4_0, Q4_1 and Q4_K value for value: groups of 32 with a
scale, the latter two with a minimum as well. Weights in other kinds (Q6_K for some in a Q4_K_M file, Q8_0) are
dequantized as llama.cpp does, and rounded again as haloctl does it; a warning says how many.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from workers.llm.program import BadInput, run
from workers.llm.quantizers.gguf_order import heads_of, in_order, rows_in_order
from workers.llm.quantizers.haloctl import make
from workers.llm.quantizers.packed import GGUF_BLOCK, GGUF_BYTES, from_q4_0, from_q4_1, from_q4_k
from workers.llm.quantizers.request import read_request
from workers.llm.quantizers.weights import linear_modules
from workers.llm.quantizers.writing import Quantized
from workers.llm.reference import load_weights
from workers.llm.shark_model import name_of

KEPT: Mapping[str, Callable[[torch.Tensor, int], Quantized]] = {
    "Q4_0": from_q4_0,
    "Q4_1": from_q4_1,
    "Q4_K": from_q4_k,
}
PLAIN = ("F32", "F16", "BF16")


def main() -> None:
    """Take the weights as the command line says."""
    request = read_request("gguf")
    if request.granularity == "group":
        request = replace(request, group_size=GGUF_BLOCK)
    file = Path(request.options["file"])
    model = load_weights(request.model, attn_implementation="eager").float().eval()
    parameters, linear = dict(model.named_parameters()), linear_modules(model)
    kept: dict[str, Quantized] = {}
    kinds: dict[str, str] = {}
    for tensor in read(file):
        try:
            name = name_of(tensor.name)
            target = parameters.pop(name)
        except KeyError:
            continue  # such as rope_freqs, which follow from the config
        heads, kind = heads_of(tensor.name, request.model.config), GGMLQuantizationType(tensor.tensor_type).name
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).view(target.shape)
        target.data.copy_(in_order(values, heads))
        module = name.removesuffix(".weight")
        if module in linear:
            kinds[module] = kind
        if module in linear and request.precision == "int4" and kind in KEPT:
            kept[module] = rows_in_order(blocks_of(tensor.data, kind, len(target)), heads)
    missing = [name for name in parameters if name != "lm_head.weight"]
    if missing:
        raise BadInput(f"{file} has no {missing[0]}: it is not of this model")
    again = Counter(kind for module, kind in kinds.items() if module not in kept and kind not in PLAIN)
    warnings = [
        f"{count} weights in {kind} were dequantized, and rounded again as haloctl does"
        for kind, count in sorted(again.items())
    ]
    counted = dict(Counter(kinds.values()))
    make(request, "gguf", model, kept, kept_as_they_were=sorted(kept), kinds=counted, warnings=warnings)


def read(file: Path) -> list[Any]:
    """A file's tensors."""
    try:
        return list(GGUFReader(file).tensors)
    except (OSError, ValueError) as problem:
        raise BadInput(f"{file} can't be read as GGUF: {problem}") from None


def blocks_of(data: Any, kind: str, rows: int) -> Quantized:
    """The bytes of a tensor with so many rows."""
    return KEPT[kind](torch.from_numpy(data.copy()).view(-1, GGUF_BYTES[kind]), rows)


if __name__ == "__main__":
    run(main)
