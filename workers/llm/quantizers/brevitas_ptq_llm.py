"""`python -m workers.llm.quantizers.brevitas_ptq_llm`: brevitas_ptq_llm, with what its export for shark-ai leaves out.

Brevitas 0.13.4 does not export the biases of quantized modules there, so that `--bias-corr` has no effect, and has an
exporter of the factors of `--act-equalization=layerwise`, as premul_input, that it never calls.
"""

from typing import Any

from brevitas.export.shark.manager import SharkManager
from brevitas.nn import QuantLinear
from brevitas_examples.llm import main as program
from sharktank.types import DefaultPrimitiveTensor, Theta

WITHIN = ".layer"  #: the module that is equalized, in the one that equalizes
FACTORS = ".scale.weight"  #: of the latter


class Exporter(SharkManager):  # type: ignore[misc]
    """Brevitas' own, put right."""

    def export(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """A dataset of the model's tensors, by their names in Hugging Face's words."""
        dataset = super().export(model, *args, **kwargs)
        found = {shark_name(name): tensor for name, tensor in dataset.root_theta.flatten().items()}
        for name, module in model.named_modules():
            if isinstance(module, QuantLinear) and module.bias is not None:
                bias = shark_name(f"{name}.bias")
                found[bias] = DefaultPrimitiveTensor(name=bias, data=module.bias.detach().contiguous())
        dataset.root_theta = Theta(found)
        return dataset


def shark_name(name: str) -> str:
    """A tensor's name as if the module that equalizes around its own were not there."""
    if name.endswith(FACTORS):
        return f"{name.removesuffix(FACTORS)}.premul_input"
    module, _, leaf = name.rpartition(".")
    return f"{module.removesuffix(WITHIN)}.{leaf}"


if __name__ == "__main__":
    program.SharkManager = Exporter
    program.main()
