"""`python -m workers.llm.quantizers.gguf`: weights that llama.cpp has quantized, from a GGUF file of the same model.

Config, tokenizer and calibration are the model's. int4 keeps Q4_0 value for value: groups of 32 with a scale. The
layout has no place for other kinds (a minimum for a group in Q4_1 and Q4_K, 8-bit weights whose inputs have no scales
in Q8_0): they are dequantized as llama.cpp does, and rounded again as haloctl does it; a warning says which.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from workers.llm.program import BadInput, run
from workers.llm.quantizers.gguf_order import heads_of, in_order, rows_in_order
from workers.llm.quantizers.haloctl import make
from workers.llm.quantizers.packed import GGUF_BLOCK, from_q4_0
from workers.llm.quantizers.request import read_request
from workers.llm.quantizers.writing import Quantized
from workers.llm.reference import load_weights
from workers.llm.shark_model import name_of

PLAIN = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


def main() -> None:
    """Take the weights as the command line says."""
    request = read_request("gguf")
    if request.granularity == "group":
        request = replace(request, group_size=GGUF_BLOCK)
    file = Path(request.options["file"])
    model = load_weights(request.model, attn_implementation="eager").float().eval()
    stored = {tensor.name: tensor for tensor in read(file)}
    parameters = dict(model.named_parameters())
    kept: dict[str, Quantized] = {}
    kinds: Counter[str] = Counter()
    for name, tensor in stored.items():
        heads = heads_of(name, request.model.config)
        try:
            target = parameters.pop(name_of(name))
        except KeyError:
            continue  # such as rope_freqs, which follow from the config
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).view(target.shape)
        target.data.copy_(in_order(values, heads))
        kinds[tensor.tensor_type.name] += 1
        if request.precision == "int4" and tensor.tensor_type == GGMLQuantizationType.Q4_0:
            module = name_of(name).removesuffix(".weight")
            kept[module] = rows_in_order(q4_0(tensor.data, target.shape[0]), heads)
    missing = [name for name in parameters if name != "lm_head.weight"]
    if missing:
        raise BadInput(f"{file} has no {missing[0]}: it is not of this model")
    again = sorted(kind for kind in kinds if kind not in {one.name for one in PLAIN} and not (kept and kind == "Q4_0"))
    warnings = [
        f"{kinds[kind]} tensors in {kind} were dequantized, and rounded again as haloctl does" for kind in again
    ]
    make(request, "gguf", model, kept, kept_as_they_were=sorted(kept), kinds=dict(kinds), warnings=warnings)


def read(file: Path) -> list[Any]:
    """A file's tensors."""
    try:
        return list(GGUFReader(file).tensors)
    except (OSError, ValueError) as problem:
        raise BadInput(f"{file} can't be read as GGUF: {problem}") from None


def q4_0(data: Any, rows: int) -> Quantized:
    """The bytes of a Q4_0 tensor."""
    return from_q4_0(torch.from_numpy(data.copy()).view(-1, 18), rows)


if __name__ == "__main__":
    run(main)
