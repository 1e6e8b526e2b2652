"""Small words for building MLIR with the compiler's bindings."""

from collections.abc import Sequence

import torch
from iree.compiler import ir

from workers.llm.pieces import Meta

ELEMENT = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64"}


def emit(
    name: str,
    at: ir.InsertionPoint,
    operands: Sequence[ir.Value] = (),
    results: Sequence[ir.Type] = (),
    regions: int = 0,
    **attributes: ir.Attribute,
) -> ir.Operation:
    """Create the operation `name`; attributes with a dot in their name are passed as `**{"a.b": ...}`."""
    return ir.Operation.create(
        name, results=list(results), operands=list(operands), attributes=attributes, regions=regions, ip=at
    )


def tensor(meta: Meta) -> ir.Type:
    """The builtin tensor type of `meta`."""
    return ir.Type.parse(f"tensor<{'x'.join([*map(str, meta.shape), ELEMENT[meta.dtype]])}>")


def device(rank: int) -> ir.Attribute:
    """The logical device of a rank, as a promise that `--iree-hal-target-device=...[rank]` keeps."""
    return ir.Attribute.parse(f"#hal.device.promise<@__device_{rank}>")


def constant(values: torch.Tensor, at: ir.InsertionPoint) -> ir.Value:
    """A small tensor's values, written into the program."""
    meta = Meta.of(values)
    text = ", ".join(
        repr(float(value)) if values.is_floating_point() else str(int(value)) for value in values.flatten()
    )
    literal = text if not meta.shape else f"[{text}]"
    value = ir.Attribute.parse(f"dense<{literal}> : {tensor(meta)}")
    return emit("arith.constant", at, results=[tensor(meta)], value=value).result


def operations(function: ir.Operation) -> list[ir.Operation]:
    """The operations in the body of a function, as they are now."""
    return [view.operation for view in function.regions[0].blocks[0].operations]


def replace_return(function: ir.Operation, more: Sequence[ir.Value]) -> None:
    """Return what the function returned, and `more`; `renew_type` is to follow."""
    end = operations(function)[-1]
    emit("util.return", ir.InsertionPoint(end), [*end.operands, *more])
    end.erase()


def is_used(value: ir.Value) -> bool:
    """Whether anything reads `value`."""
    return any(True for _ in value.uses)


def add_argument(function: ir.Operation, kind: ir.Type) -> ir.Value:
    """Give the function one more argument; `renew_type` is to follow."""
    return function.regions[0].blocks[0].add_argument(kind, ir.Location.unknown())


def renew_type(function: ir.Operation) -> None:
    """Make the function's type say what its body takes and returns."""
    body = function.regions[0].blocks[0]
    results = [value.type for value in operations(function)[-1].operands]
    signature = ir.FunctionType.get([argument.type for argument in body.arguments], results)
    function.attributes["function_type"] = ir.TypeAttr.get(signature)


def transfer(value: ir.Value, rank: int, at: ir.InsertionPoint) -> ir.Value:
    """Move a tensor to a rank's device."""
    return emit("flow.tensor.transfer", at, [value], [value.type], target=device(rank)).result
