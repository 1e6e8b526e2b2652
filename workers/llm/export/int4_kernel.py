"""The MLIR of a matmul with int4 weights, which replaces the op `haloctl::int4_linear` that torch traces.

The weight stays packed in memory. Unpacking and scaling is an operation of its own, but one that only widens, so that
IREE fuses it into the matmul's dispatch and hoists none of it (3.13; on gfx942 the products are MFMA in f16). The
fusion needs columns in groups throughout, `[rows, groups, columns of a group]`: a reshape between the two operations
prevents it, and a copy of the weight in f16 is written to memory.
"""

from iree.compiler import ir

from workers.llm.export.mlir_ops import declare, emit, operations
from workers.llm.models.quantized_layout import INT4_OFFSET

SYMBOL = "int4:"  #: prefix of the symbols that stand for the op until `define_kernels`
OP = "torch.haloctl.int4_linear"  #: the op's name after the import


def declare_kernel_call(module: ir.Module, op: ir.Operation) -> None:
    """Turn the op into a call of a declared function, which every pass of the lowering supports."""
    operands = [value for value in op.operands if value.type != ir.Type.parse("!torch.none")]
    symbol = f"{SYMBOL}{len(module.body.operations)}"
    declare(module, symbol, ir.FunctionType.get([value.type for value in operands], [op.results[0].type]))
    callee = ir.FlatSymbolRefAttr.get(symbol)
    call = emit("func.call", ir.InsertionPoint(op), operands, [op.results[0].type], callee=callee)
    op.results[0].replace_all_uses_with(call.results[0])
    op.erase()


def define_kernels(module: ir.Module) -> None:
    """Define the declared functions once their types are builtin; IREE inlines them."""
    with ir.Location.unknown(module.context):
        for view in list(module.body.operations):
            function = view.operation
            if function.name == "func.func" and function.regions[0].blocks:
                _call_kernels(function)
        for view in list(module.body.operations):
            function = view.operation
            symbol = ir.StringAttr(function.attributes["sym_name"]).value
            if symbol.startswith(SYMBOL):
                signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
                types = [ir.RankedTensorType(argument) for argument in signature.inputs]
                module.body.append(ir.Operation.parse(_kernel(symbol, types)))
                function.erase()


def _call_kernels(function: ir.Operation) -> None:
    for op in operations(function):
        if op.name == "func.call" and ir.FlatSymbolRefAttr(op.attributes["callee"]).value.startswith(SYMBOL):
            results = [value.type for value in op.results]
            call = emit("util.call", ir.InsertionPoint(op), list(op.operands), results, callee=op.attributes["callee"])
            op.results[0].replace_all_uses_with(call.results[0])
            op.erase()


def _kernel(symbol: str, types: list[ir.RankedTensorType]) -> str:
    """Return the function of inputs, packed weight, scales and optional zero points of these types."""
    (tokens, columns), (rows, groups) = types[0].shape, types[2].shape
    number = str(types[0].element_type)
    inputs = f"tensor<{tokens}x{groups}x{columns // groups}x{number}>"
    product = f"tensor<{tokens}x{rows}xf32>"
    zeros = f", %zeros: {types[3]}" if len(types) == 4 else ""
    text, weight = _unpacking(types, number)
    widen = "" if number == "f32" else f"%x = arith.extf %a : {number} to f32 %y = arith.extf %b : {number} to f32"
    x, y = ("%x", "%y") if widen else ("%a", "%b")
    return f"""
    util.func private @"{symbol}"(%input: {types[0]}, %bytes: {types[1]}, %scales: {types[2]}{zeros}) -> {product} {{
      {text}
      %grouped = tensor.expand_shape %input [[0], [1, 2]] output_shape [{tokens}, {groups}, {columns // groups}]
        : {types[0]} into {inputs}
      %nothing = arith.constant 0.0 : f32
      %start = tensor.empty() : {product}
      %filled = linalg.fill ins(%nothing : f32) outs(%start : {product}) -> {product}
      %product = linalg.generic {{
        indexing_maps = [affine_map<(m, n, g, k) -> (m, g, k)>, affine_map<(m, n, g, k) -> (n, g, k)>,
                         affine_map<(m, n, g, k) -> (m, n)>],
        iterator_types = ["parallel", "parallel", "reduction", "reduction"]
      }} ins(%grouped, %weight : {inputs}, {weight}) outs(%filled : {product}) {{
      ^bb0(%a: {number}, %b: {number}, %sum: f32):
        {widen}
        %times = arith.mulf {x}, {y} : f32
        %sum_then = arith.addf %sum, %times : f32
        linalg.yield %sum_then : f32
      }} -> {product}
      util.return %product : {product}
    }}"""


def _unpacking(types: list[ir.RankedTensorType], number: str) -> tuple[str, str]:
    """Return the operations that compute `%weight`, and its type `[rows, groups, columns of a group]`."""
    (rows, groups), columns = types[2].shape, types[0].shape[1]
    shape = f"{rows}x{groups}x{columns // groups}"
    weight, has_zeros = f"tensor<{shape}x{number}>", len(types) == 4
    values = ["%scales", *(["%zeros"] if has_zeros else [])]
    value_types = ", ".join(map(str, types[2:]))
    maps = ", affine_map<(n, g, k) -> (n, g)>" * len(values)
    zero = str(types[3].element_type) if has_zeros else ""
    text = f"""%nibbles = flow.tensor.bitcast %bytes : {types[1]} -> tensor<{shape}xi4>
      %space = tensor.empty() : {weight}
      %weight = linalg.generic {{
        indexing_maps = [affine_map<(n, g, k) -> (n, g, k)>{maps}, affine_map<(n, g, k) -> (n, g, k)>],
        iterator_types = ["parallel", "parallel", "parallel"]
      }} ins(%nibbles, {", ".join(values)} : tensor<{shape}xi4>, {value_types}) outs(%space : {weight}) {{
      ^bb0(%nibble: i4, %scale: {number}{f", %zero: {zero}" if zero else ""}, %out: {number}):
        %unsigned = arith.extui %nibble : i4 to i32
        %offset = arith.constant {INT4_OFFSET} : i32
        %shifted = arith.subi %unsigned, %offset : i32
        {_from_zero(zero, number)}
        %scaled = arith.mulf %value, %scale : {number}
        linalg.yield %scaled : {number}
      }} -> {weight}"""
    return text, weight


def _from_zero(zero: str, number: str) -> str:
    """Return the operations that compute `%value` from `%shifted` and a zero point of type `zero`, if there is one."""
    if zero == number:
        return f"""%float = arith.sitofp %shifted : i32 to {number}
        %value = arith.subf %float, %zero : {number}"""
    if not zero:
        return f"%value = arith.sitofp %shifted : i32 to {number}"
    return f"""%zero_i32 = arith.extsi %zero : {zero} to i32
        %signed = arith.subi %shifted, %zero_i32 : i32
        %value = arith.sitofp %signed : i32 to {number}"""
