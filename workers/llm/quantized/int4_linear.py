"""The custom op for a matmul with int4 weights that torch traces; `workers.llm.export.int4_kernel` has its MLIR."""

import torch

_library = torch.library.Library("haloctl", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor? zero_point) -> Tensor"
)


@torch.library.register_fake("haloctl::int4_linear", lib=_library)  # type: ignore[untyped-decorator]
def _fake(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((x.shape[0], packed.shape[0]), dtype=torch.float32)


def int4_linear(
    x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None
) -> torch.Tensor:
    """Return `x` [tokens, columns] times the weight, as float32 [tokens, rows]. It can only be traced.

    `packed` [rows, columns / 2] holds each value plus 8, the first of two in the low bits. `scale` and `zero_point`
    (int8, the dtype of `scale`, or None) are [rows, groups].
    """
    result: torch.Tensor = torch.ops.haloctl.int4_linear(x, packed, scale, zero_point)
    return result
