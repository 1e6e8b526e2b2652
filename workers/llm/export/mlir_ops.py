"""Building and editing MLIR operations with the bindings of IREE's compiler."""

from collections.abc import Sequence

import torch
from iree.compiler import ir

from workers.llm.export.subgraphs import TensorMeta

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
    """Create the operation `name`. Attributes with a dot in their name are passed as `**{"a.b": ...}`."""
    return ir.Operation.create(
        name, results=list(results), operands=list(operands), attributes=attributes, regions=regions, ip=at
    )


def declare(module: ir.Module, symbol: str, signature: ir.FunctionType) -> None:
    """Declare a private function that assembly either defines or stops calling."""
    emit(
        "func.func",
        ir.InsertionPoint.at_block_begin(module.body),
        regions=1,
        sym_name=ir.StringAttr.get(symbol),
        function_type=ir.TypeAttr.get(signature),
        sym_visibility=ir.StringAttr.get("private"),
    )


def tensor_type(meta: TensorMeta) -> ir.Type:
    """Return the builtin tensor type."""
    return ir.Type.parse(f"tensor<{'x'.join([*map(str, meta.shape), ELEMENT[meta.dtype]])}>")


def meta_of(value: ir.Value) -> TensorMeta:
    """Return the shape and dtype of a builtin tensor."""
    ranked = ir.RankedTensorType(value.type)
    dtypes = {name: dtype for dtype, name in ELEMENT.items()}
    return TensorMeta(tuple(ranked.shape), dtypes[str(ranked.element_type)])


def copy(op: ir.Operation, values: dict[ir.Value, ir.Value], at: ir.InsertionPoint) -> None:
    """Clone `op` with its operands replaced as in `values`, and add its results to `values`."""
    new = op.clone(at)

    def replace(nested: ir.Operation) -> ir.WalkResult:
        for index, operand in enumerate(nested.operands):
            if operand in values:
                nested.operands[index] = values[operand]
        return ir.WalkResult.ADVANCE

    new.walk(replace)
    values.update(zip(op.results, new.results, strict=True))


def device(rank: int) -> ir.Attribute:
    """Return the affinity of a rank: a device promise that `--iree-hal-target-device=...[rank]` resolves."""
    return ir.Attribute.parse(f"#hal.device.promise<@__device_{rank}>")


def constant(values: torch.Tensor, at: ir.InsertionPoint) -> ir.Value:
    """Write a small tensor's values into the program as a constant."""
    meta = TensorMeta.of(values)
    text = ", ".join(
        repr(float(value)) if values.is_floating_point() else str(int(value)) for value in values.flatten()
    )
    literal = text if not meta.shape else f"[{text}]"
    value = ir.Attribute.parse(f"dense<{literal}> : {tensor_type(meta)}")
    return emit("arith.constant", at, results=[tensor_type(meta)], value=value).result


def operations(function: ir.Operation) -> list[ir.Operation]:
    """Return a snapshot of the operations in a function's body."""
    return [view.operation for view in function.regions[0].blocks[0].operations]


def replace_return(function: ir.Operation, extra: Sequence[ir.Value]) -> None:
    """Let the function return `extra` values too; call `renew_type` afterwards."""
    end = operations(function)[-1]
    emit("util.return", ir.InsertionPoint(end), [*end.operands, *extra])
    end.erase()


def is_used(value: ir.Value) -> bool:
    """Return whether anything reads `value`."""
    return any(True for _ in value.uses)


def add_argument(function: ir.Operation, argument_type: ir.Type) -> ir.Value:
    """Append an argument to the function; call `renew_type` afterwards."""
    return function.regions[0].blocks[0].add_argument(argument_type, ir.Location.unknown())


def renew_type(function: ir.Operation) -> None:
    """Set the function's type to what its body takes and returns."""
    body = function.regions[0].blocks[0]
    signature = ir.FunctionType.get([argument.type for argument in body.arguments], result_types(function))
    function.attributes["function_type"] = ir.TypeAttr.get(signature)


def result_types(function: ir.Operation) -> list[ir.Type]:
    """Return the types of what the function returns."""
    return [value.type for value in operations(function)[-1].operands]


def slice_of(entry: ir.Value, offset_bytes: int, meta: TensorMeta, at: ir.InsertionPoint) -> ir.Value:
    """Return the tensor that begins at `offset_bytes` of `entry`, a flat tensor of the same type or of bytes."""
    if tensor_type(TensorMeta((), meta.dtype)) != ir.RankedTensorType.get(
        (), ir.RankedTensorType(entry.type).element_type
    ):
        count = torch.Size(meta.shape).numel() * meta.dtype.itemsize
        data = slice_of(entry, offset_bytes, TensorMeta((count,), torch.uint8), at)
        return bitcast(data, meta, at)
    count, rank = torch.Size(meta.shape).numel(), len(meta.shape)
    flat = emit(
        "tensor.extract_slice",
        at,
        [entry],
        [tensor_type(TensorMeta((count,), meta.dtype))],
        static_offsets=ir.DenseI64ArrayAttr.get([offset_bytes // meta.dtype.itemsize]),
        static_sizes=ir.DenseI64ArrayAttr.get([count]),
        static_strides=ir.DenseI64ArrayAttr.get([1]),
        operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 0, 0, 0]),
    ).result
    if rank == 1:
        return flat
    dims = ", ".join(f"{dim} : i64" for dim in range(rank))
    return emit(
        "tensor.expand_shape",
        at,
        [flat],
        [tensor_type(meta)],
        reassociation=ir.Attribute.parse(f"[[{dims}]]"),
        static_output_shape=ir.DenseI64ArrayAttr.get(list(meta.shape)),
    ).result


def bitcast(value: ir.Value, meta: TensorMeta, at: ir.InsertionPoint) -> ir.Value:
    """Return the same bytes as a tensor of another shape and dtype."""
    sizes = ir.DenseI32ArrayAttr.get([1, 0, 0])
    return emit("flow.tensor.bitcast", at, [value], [tensor_type(meta)], operandSegmentSizes=sizes).result


def transfer(value: ir.Value, rank: int, at: ir.InsertionPoint) -> ir.Value:
    """Transfer a tensor to a rank's device."""
    return emit("flow.tensor.transfer", at, [value], [value.type], target=device(rank)).result
