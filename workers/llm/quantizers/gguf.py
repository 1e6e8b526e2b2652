"""`python -m workers.llm.quantizers.gguf`: use the weights of a GGUF file of the same model, quantized by llama.cpp.

Config, tokenizer and calibration come from the model. int4 keeps the values of Q4_0, Q4_1 and Q4_K unchanged: groups of
32 with a scale, in the latter two with a minimum as well. Weights in other kinds (Q6_K for some in a Q4_K_M file, Q8_0)
are dequantized as llama.cpp does and rounded again by haloctl's quantizer; a warning states how many.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from workers.llm.command_line import BadInput, run
from workers.llm.numerics.reference import load_weights
from workers.llm.quantizers.gguf_row_order import heads_of, restore_row_order, restore_weight_row_order
from workers.llm.quantizers.haloctl import quantize_model
from workers.llm.quantizers.model_tensors import linear_modules
from workers.llm.quantizers.packed_formats import GGUF_BLOCK, GGUF_BYTES, from_q4_0, from_q4_1, from_q4_k
from workers.llm.quantizers.quantize_request import QuantizeRequest, read_request
from workers.llm.quantizers.quantized_weight import QuantizedWeight
from workers.llm.shark.shark_model import name_of

INT4_KINDS: Mapping[str, Callable[[torch.Tensor, int], QuantizedWeight]] = {
    "Q4_0": from_q4_0,
    "Q4_1": from_q4_1,
    "Q4_K": from_q4_k,
}
FLOAT_KINDS = ("F32", "F16", "BF16")


@dataclass
class GgufWeights:
    """The linear modules of a GGUF file."""

    int4: dict[str, QuantizedWeight] = field(default_factory=dict)  #: those whose int4 values are kept unchanged
    kinds: dict[str, str] = field(default_factory=dict)  #: llama.cpp's name of the type of every module

    def warnings(self) -> list[str]:
        """Return a warning for each kind of weights that is rounded again."""
        requantized = Counter(
            kind for module, kind in self.kinds.items() if module not in self.int4 and kind not in FLOAT_KINDS
        )
        return [
            f"{count} weights in {kind} were dequantized, and rounded again as haloctl does"
            for kind, count in sorted(requantized.items())
        ]


def main() -> None:
    """Convert the weights of a GGUF file as the command line says."""
    request = read_request("gguf")
    if request.granularity == "group":
        request = replace(request, group_size=GGUF_BLOCK)
    model = load_weights(request.model, attn_implementation="eager").float().eval()
    weights = load_gguf(Path(request.options["file"]), model, request, linear_modules(model))
    quantize_model(
        request,
        "gguf",
        model,
        weights.int4,
        kept_as_they_were=sorted(weights.int4),
        kinds=dict(Counter(weights.kinds.values())),
        warnings=weights.warnings(),
    )


def load_gguf(file: Path, model: Any, request: QuantizeRequest, linear: Collection[str]) -> GgufWeights:
    """Copy the file's weights, dequantized, into `model`, and return its linear modules.

    Raises BadInput for a file that is unreadable or lacks one of the model's parameters.
    """
    parameters = dict(model.named_parameters())
    weights = GgufWeights()
    for tensor in read_gguf(file):
        try:
            name = name_of(tensor.name)
            target = parameters.pop(name)
        except KeyError:
            continue  # such as rope_freqs, which follow from the config
        heads, kind = heads_of(tensor.name, request.model.config), GGMLQuantizationType(tensor.tensor_type).name
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).view(target.shape)
        target.data.copy_(restore_row_order(values, heads))
        module = name.removesuffix(".weight")
        if module not in linear:
            continue
        weights.kinds[module] = kind
        if request.precision == "int4" and kind in INT4_KINDS:
            blocks = torch.from_numpy(tensor.data.copy()).view(-1, GGUF_BYTES[kind])
            weights.int4[module] = restore_weight_row_order(INT4_KINDS[kind](blocks, len(target)), heads)
    missing = [name for name in parameters if name != "lm_head.weight"]
    if missing:
        raise BadInput(f"{file} has no {missing[0]}: it is not of this model")
    return weights


def read_gguf(file: Path) -> list[Any]:
    """Read a GGUF file's tensors. Raises BadInput when it is not one."""
    try:
        return list(GGUFReader(file).tensors)
    except (OSError, ValueError) as problem:
        raise BadInput(f"{file} can't be read as GGUF: {problem}") from None


if __name__ == "__main__":
    run(main)
