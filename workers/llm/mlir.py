"""Small words for building MLIR with the compiler's bindings."""

from collections.abc import Sequence

import torch
from iree.compiler import ir

from workers.llm.pieces import Meta

ELEMENT = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
}


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


def declare(module: ir.Module, symbol: str, signature: ir.FunctionType) -> None:
    """Declare a function that the module will have, or will no longer call, when it is put together."""
    emit(
        "func.func",
        ir.InsertionPoint.at_block_begin(module.body),
        regions=1,
        sym_name=ir.StringAttr.get(symbol),
        function_type=ir.TypeAttr.get(signature),
        sym_visibility=ir.StringAttr.get("private"),
    )


def tensor(meta: Meta) -> ir.Type:
    """The builtin tensor type of `meta`."""
    return ir.Type.parse(f"tensor<{'x'.join([*map(str, meta.shape), ELEMENT[meta.dtype]])}>")


def meta_of(value: ir.Value) -> Meta:
    """Shape and type of a builtin tensor."""
    kind = ir.RankedTensorType(value.type)
    dtypes = {name: dtype for dtype, name in ELEMENT.items()}
    return Meta(tuple(kind.shape), dtypes[str(kind.element_type)])


def copy(op: ir.Operation, values: dict[ir.Value, ir.Value], at: ir.InsertionPoint) -> None:
    """Do `op` once more, with what its operands are in `values`, where its results are put too."""
    new = op.clone(at)

    def replace(nested: ir.Operation) -> ir.WalkResult:
        for index, operand in enumerate(nested.operands):
            if operand in values:
                nested.operands[index] = values[operand]
        return ir.WalkResult.ADVANCE

    new.walk(replace)
    values.update(zip(op.results, new.results, strict=True))


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


def slice_of(entry: ir.Value, offset_bytes: int, meta: Meta, at: ir.InsertionPoint) -> ir.Value:
    """A tensor that lies in a flat one of its type, or of bytes, from a byte on."""
    if tensor(Meta((), meta.dtype)) != ir.RankedTensorType.get((), ir.RankedTensorType(entry.type).element_type):
        count = torch.Size(meta.shape).numel() * meta.dtype.itemsize
        taken = slice_of(entry, offset_bytes, Meta((count,), torch.uint8), at)
        return bitcast(taken, meta, at)
    count, rank = torch.Size(meta.shape).numel(), len(meta.shape)
    one = emit(
        "tensor.extract_slice",
        at,
        [entry],
        [tensor(Meta((count,), meta.dtype))],
        static_offsets=ir.DenseI64ArrayAttr.get([offset_bytes // meta.dtype.itemsize]),
        static_sizes=ir.DenseI64ArrayAttr.get([count]),
        static_strides=ir.DenseI64ArrayAttr.get([1]),
        operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 0, 0, 0]),
    ).result
    if rank == 1:
        return one
    dims = ", ".join(f"{dim} : i64" for dim in range(rank))
    return emit(
        "tensor.expand_shape",
        at,
        [one],
        [tensor(meta)],
        reassociation=ir.Attribute.parse(f"[[{dims}]]"),
        static_output_shape=ir.DenseI64ArrayAttr.get(list(meta.shape)),
    ).result


def bitcast(value: ir.Value, meta: Meta, at: ir.InsertionPoint) -> ir.Value:
    """The same bytes as another tensor."""
    sizes = ir.DenseI32ArrayAttr.get([1, 0, 0])
    return emit("flow.tensor.bitcast", at, [value], [tensor(meta)], operandSegmentSizes=sizes).result


def transfer(value: ir.Value, rank: int, at: ir.InsertionPoint) -> ir.Value:
    """Move a tensor to a rank's device."""
    return emit("flow.tensor.transfer", at, [value], [value.type], target=device(rank)).result
