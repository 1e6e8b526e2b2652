"""Building and editing MLIR operations with the bindings of IREE's compiler."""

import math
from collections.abc import Callable, Sequence

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


def copy(op: ir.Operation, value_of: Callable[[ir.Value], ir.Value], at: ir.InsertionPoint) -> list[ir.Value]:
    """Clone `op` with each operand replaced by its `value_of`, which returns others as they are; return the results."""
    values = {operand: value_of(operand) for operand in operands_within(op)}
    new = op.clone(at)

    def replace(nested: ir.Operation) -> ir.WalkResult:
        for index, operand in enumerate(nested.operands):
            nested.operands[index] = values.get(operand, operand)
        return ir.WalkResult.ADVANCE

    new.walk(replace)
    return list(new.results)


def operands_within(op: ir.Operation) -> list[ir.Value]:
    """Return the operands of an operation and of those in its regions."""
    values: list[ir.Value] = []

    def collect(nested: ir.Operation) -> ir.WalkResult:
        values.extend(nested.operands)
        return ir.WalkResult.ADVANCE

    op.walk(collect)
    return values


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
    flat = rows(entry, offset_bytes // meta.dtype.itemsize, torch.Size(meta.shape).numel(), at)
    return reshape(flat, meta.shape, at)


def rows(value: ir.Value, first: int, count: int, at: ir.InsertionPoint) -> ir.Value:
    """Return `count` rows of a tensor, from the row `first` on."""
    (size, *width), dtype = meta_of(value).shape, meta_of(value).dtype
    if (first, count) == (0, size):
        return value
    return emit(
        "tensor.extract_slice",
        at,
        [value],
        [tensor_type(TensorMeta((count, *width), dtype))],
        static_offsets=ir.DenseI64ArrayAttr.get([first, *(0 for _ in width)]),
        static_sizes=ir.DenseI64ArrayAttr.get([count, *width]),
        static_strides=ir.DenseI64ArrayAttr.get([1] * (1 + len(width))),
        operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 0, 0, 0]),
    ).result


def reshape(value: ir.Value, shape: Sequence[int], at: ir.InsertionPoint) -> ir.Value:
    """Return the same elements in another shape; only dimensions before those that both shapes end with are changed."""
    meta = meta_of(value)
    if meta.shape == tuple(shape):
        return value
    shorter = min(len(meta.shape), len(shape))
    kept = next((n for n in range(shorter - 1, 0, -1) if meta.shape[-n:] == tuple(shape[-n:])), 0)
    before, after = len(meta.shape) - kept, len(shape) - kept
    if before > 1:
        meta = TensorMeta((math.prod(meta.shape[:before]), *meta.shape[before:]), meta.dtype)
        dims = _first_together(before, kept)
        value = emit("tensor.collapse_shape", at, [value], [tensor_type(meta)], reassociation=dims).result
    if after > 1:
        value = emit(
            "tensor.expand_shape",
            at,
            [value],
            [tensor_type(TensorMeta(tuple(shape), meta.dtype))],
            reassociation=_first_together(after, kept),
            static_output_shape=ir.DenseI64ArrayAttr.get(list(shape)),
        ).result
    return value


def _first_together(count: int, others: int) -> ir.Attribute:
    """Return the reassociation of the first `count` dimensions into one, with the others each by itself."""
    first = ", ".join(f"{dim} : i64" for dim in range(count))
    rest = "".join(f", [{dim} : i64]" for dim in range(count, count + others))
    return ir.Attribute.parse(f"[[{first}]{rest}]")


def concat(parts: Sequence[ir.Value], dim: int, at: ir.InsertionPoint) -> ir.Value:
    """Return tensors side by side along a dimension."""
    if len(parts) == 1:
        return parts[0]
    metas = [meta_of(part) for part in parts]
    shape = list(metas[0].shape)
    shape[dim] = sum(meta.shape[dim] for meta in metas)
    whole = tensor_type(TensorMeta(tuple(shape), metas[0].dtype))
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
    return emit("tensor.concat", at, parts, [whole], dim=number).result


def pad_rows(value: ir.Value, count: int, at: ir.InsertionPoint) -> ir.Value:
    """Return a tensor of floats with zeros behind its rows, `count` rows in all."""
    meta = meta_of(value)
    missing = tensor_type(TensorMeta((count - meta.shape[0], *meta.shape[1:]), meta.dtype))
    if count == meta.shape[0]:
        return value
    zeros = emit("arith.constant", at, results=[missing], value=ir.Attribute.parse(f"dense<0.0> : {missing}")).result
    return concat([value, zeros], 0, at)


def bitcast(value: ir.Value, meta: TensorMeta, at: ir.InsertionPoint) -> ir.Value:
    """Return the same bytes as a tensor of another shape and dtype."""
    sizes = ir.DenseI32ArrayAttr.get([1, 0, 0])
    return emit("flow.tensor.bitcast", at, [value], [tensor_type(meta)], operandSegmentSizes=sizes).result


def transfer(value: ir.Value, rank: int, at: ir.InsertionPoint) -> ir.Value:
    """Transfer a tensor to a rank's device."""
    return emit("flow.tensor.transfer", at, [value], [value.type], target=device(rank)).result


def end_step(at: ir.InsertionPoint) -> None:
    """Keep what follows apart from what is before: no command buffer of a device has operations of both.

    IREE 3.13 puts operations of a device together wherever that makes no circle. So one rank's sum would join the block
    whose part it adds, and this block wait for the other ranks'. An operation with side effects is a border.
    """
    index = ir.IndexType.get()
    zero = emit("arith.constant", at, results=[index], value=ir.IntegerAttr.get(index, 0)).result
    emit("util.optimization_barrier", at, [zero], [index])
