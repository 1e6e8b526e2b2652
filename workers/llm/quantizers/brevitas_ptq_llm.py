"""`python -m workers.llm.quantizers.brevitas_ptq_llm`: brevitas_ptq_llm with a complete export for shark-ai.

The shark-ai export of Brevitas 0.13.4 leaves out the biases of quantized modules, so that `--bias-corr` has no effect,
and never calls its exporter of the factors of `--act-equalization=layerwise` (premul_input).
"""

from typing import Any

from brevitas.export.shark.manager import SharkManager
from brevitas.nn import QuantLinear
from brevitas_examples.llm import main as program
from sharktank.types import DefaultPrimitiveTensor, Theta

EQUALIZED = ".layer"  #: the equalized module inside the module that equalizes it
FACTORS = ".scale.weight"  #: the factors of the latter


class SharkManagerWithBiases(SharkManager):  # type: ignore[misc]
    """Brevitas' export manager, which also exports biases and equalization factors under sharktank's names."""

    def export(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the dataset of the model's tensors, under Hugging Face's names."""
        dataset = super().export(model, *args, **kwargs)
        tensors = {shark_name(name): tensor for name, tensor in dataset.root_theta.flatten().items()}
        for name, module in model.named_modules():
            if isinstance(module, QuantLinear) and module.bias is not None:
                bias = shark_name(f"{name}.bias")
                tensors[bias] = DefaultPrimitiveTensor(name=bias, data=module.bias.detach().contiguous())
        dataset.root_theta = Theta(tensors)
        return dataset


def shark_name(name: str) -> str:
    """Return a tensor's name without the equalizing module around its own."""
    if name.endswith(FACTORS):
        return f"{name.removesuffix(FACTORS)}.premul_input"
    module, _, leaf = name.rpartition(".")
    return f"{module.removesuffix(EQUALIZED)}.{leaf}"


if __name__ == "__main__":
    program.SharkManager = SharkManagerWithBiases
    program.main()
