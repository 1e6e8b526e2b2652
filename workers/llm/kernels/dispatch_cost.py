"""The least that one dispatch computes and moves, from its linalg operations on tensors."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from iree.compiler import ir

BITS = re.compile(r"\d+")
DIM = re.compile(r"d\d+").fullmatch
INDEX_BITS = 64
#: Operations that change a number's format or choose between two: no arithmetic.
FREE = frozenset(
    {
        *("arith.constant", "arith.select", "arith.bitcast", "arith.index_cast", "arith.index_castui"),
        *("arith.truncf", "arith.extf", "arith.trunci", "arith.extsi", "arith.extui"),
        *("arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui"),
    }
)
ATTENTION, GATHER, SCATTER = (f"iree_linalg_ext.{name}" for name in ("attention", "gather", "scatter"))
EXTRACT = "tensor.extract"
LOAD, STORE = "iree_tensor_ext.dispatch.tensor.load", "iree_tensor_ext.dispatch.tensor.store"
#: Named operations whose loops no indexing map says.
PACKED_MATMULS = frozenset({"linalg.mmt4d", "linalg.batch_mmt4d"})
CONVOLUTION = re.compile(r"linalg\.(?:depthwise_)?conv_\w+?_(?P<filter>[a-z]+)(?:_q)?")


class DynamicShape(Exception):
    """A tensor's size is known only when the program runs."""


@dataclass
class DispatchCost:
    """What a dispatch has to compute and to move at least, each byte of its tensors once."""

    kind: str = "elementwise"
    flops: float = 0.0  #: of contractions: two for each multiplication with its addition
    other_ops: float = 0.0  #: arithmetic besides
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    operand: str = ""  #: the element type that its contractions multiply, the narrowest of the two
    is_dynamic: bool = False  #: its sizes are not known before it runs, and nothing above counts


def cost_of(function: Any) -> DispatchCost:
    """Return the cost of a dispatch's function, a `func.func` of the phase `stream`."""
    cost = DispatchCost()
    try:
        operations = list(walk(function))
        for operation in operations:
            _add_work(operation, cost)
        for operation in operations:
            _add_traffic(operation, cost)
    except DynamicShape:
        return DispatchCost(cost.kind, is_dynamic=True)
    return cost


def walk(operation: Any) -> Iterator[Any]:
    """Yield all operations within one, in their order."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from walk(inner.operation)


def element_type(value: Any) -> str:
    """Return a tensor's element type, such as f16; empty for what is no tensor."""
    try:
        return str(ir.ShapedType(value.type).element_type)
    except ValueError:
        return ""


def element_bytes(element: str) -> float:
    """Return the size of an element in memory; two of four bits share a byte."""
    if element == "index":
        return INDEX_BITS / 8
    match = BITS.search(element)
    bits = int(match[0]) if match else INDEX_BITS
    return bits / 8 if bits in (2, 4) else math.ceil(bits / 8)


def shape_of(value: Any) -> list[int]:
    """Return a tensor's shape, empty for a scalar. Raises DynamicShape."""
    try:
        shaped = ir.ShapedType(value.type)
    except ValueError:
        return []
    if not shaped.has_static_shape:
        raise DynamicShape
    return list(shaped.shape)


def size_bytes(value: Any) -> float:
    """Return a tensor's size. Raises DynamicShape."""
    return math.prod(shape_of(value)) * element_bytes(element_type(value))


@dataclass(frozen=True)
class Loops:
    """The iteration space of a structured operation."""

    extents: dict[int, int]
    of_operands: list[set[int]]  #: for each operand, the loops that index it alone

    @property
    def points(self) -> int:
        """The iterations of all loops."""
        return math.prod(self.extents.values())

    def points_of(self, loops: set[int]) -> int:
        """Return the iterations of some of the loops."""
        return math.prod(self.extents[loop] for loop in loops)


def loops_of(operation: Any) -> Loops:
    """Return the loops of an operation with indexing maps. Raises DynamicShape."""
    extents: dict[int, int] = {}
    of_operands = []
    for indices, value in zip(_indices(operation), operation.operands, strict=False):
        plain = {int(index[1:]): extent for index, extent in zip(indices, shape_of(value), strict=False) if DIM(index)}
        extents |= plain
        of_operands.append(set(plain))
    return Loops(extents, of_operands)


def _indices(operation: Any) -> list[list[str]]:
    """Return for each operand how it is indexed: `affine_map<(d0, d1) -> (d0, d0 + d1)>` is [d0, d0 + d1]."""
    texts = (str(each).partition("->")[2].strip(" <>")[1:-1] for each in operation.attributes["indexing_maps"])
    return [[part.strip() for part in text.split(",")] if text else [] for text in texts]


def _add_work(operation: Any, cost: DispatchCost) -> None:
    name = operation.name
    if name == ATTENTION:
        _add_attention(operation, cost)
    elif name in PACKED_MATMULS:
        _add_contraction(operation, _packed_points(operation), cost)
    elif match := CONVOLUTION.fullmatch(name):
        _add_contraction(operation, _convolution_points(operation, match["filter"]), cost)
    elif name == SCATTER:
        cost.kind = "scatter"
    elif name == GATHER:
        cost.kind = "gather"
    elif name.startswith("linalg.") and "indexing_maps" in operation.attributes:
        _add_structured(operation, cost)
    elif name.startswith("iree_linalg_ext.") and operation.regions and operation.operands:
        cost.other_ops += max(math.prod(shape_of(value)) for value in operation.operands)


def _add_contraction(operation: Any, points: float, cost: DispatchCost) -> None:
    cost.flops += 2 * points
    cost.kind = "attention" if cost.kind == "attention" else "matmul"
    types = [element_type(value) for value in list(operation.operands)[:2]]
    cost.operand = min(types, key=element_bytes)


def _add_attention(operation: Any, cost: DispatchCost) -> None:
    """Q times K, and their scores times V; the softmax between them is not counted."""
    loops = loops_of(operation)
    query, key, value, result = (loops.of_operands[index] for index in (0, 1, 2, -1))
    scores = (query | key) - ((query & key) - value - result)
    cost.flops += 2 * (loops.points_of(query | key) + loops.points_of(scores | value))
    cost.kind, cost.operand = "attention", element_type(operation.operands[0])


def _add_structured(operation: Any, cost: DispatchCost) -> None:
    loops = loops_of(operation)
    body = list(operation.regions[0].blocks[0].operations)
    work = [each for each in body if each.operation.name.startswith(("arith.", "math."))]
    ops = sum(each.operation.name not in FREE for each in work)
    reduces = loops.points != loops.points_of(loops.of_operands[-1])
    if reduces and _multiplies_two_inputs(operation.regions[0].blocks[0]):
        _add_contraction(operation, loops.points, cost)
        cost.other_ops += loops.points * (ops - 2)
        return
    cost.other_ops += loops.points * ops
    if reduces and cost.kind == "elementwise":
        cost.kind = "reduction"
    for each in body:
        if each.operation.name == EXTRACT:
            cost.kind = "gather" if cost.kind == "elementwise" else cost.kind
            cost.read_bytes += _gathered_bytes(each.operation.operands[0], loops.points)


def _gathered_bytes(source: Any, points: int) -> float:
    """Return what a gather of single elements reads: no more than its source has."""
    return min(size_bytes(source), points * element_bytes(element_type(source)))


def _multiplies_two_inputs(block: Any) -> bool:
    """Whether a reduction's body adds to its result the product of what two different inputs give."""
    arguments = list(block.arguments)
    result = list(block.operations)[-1].operation.operands[0].owner
    if getattr(result, "name", "") not in ("arith.addf", "arith.addi"):
        return False
    for term in result.operands:
        product = _without_casts(term)
        if getattr(product, "name", "") in ("arith.mulf", "arith.muli"):
            left, right = (_inputs_of(value, arguments[:-1]) for value in product.operands)
            return bool(left and right and left != right)
    return False


def _without_casts(value: Any) -> Any:
    owner = value.owner
    while getattr(owner, "name", "") in FREE and len(owner.operands) == 1:
        owner = owner.operands[0].owner
    return owner


def _inputs_of(value: Any, arguments: Sequence[Any]) -> set[int]:
    """Return the numbers of the inputs that a value in a body is computed from."""
    if value in arguments:
        return {arguments.index(value)}
    operands = getattr(value.owner, "operands", ())
    return {number for operand in operands for number in _inputs_of(operand, arguments)}


def _packed_points(operation: Any) -> int:
    """Return the multiplications of [batch] M1 K1 m k times [batch] N1 K1 n k."""
    left, right = (shape_of(value) for value in list(operation.operands)[:2])
    return math.prod(left) * right[-4] * right[-2]


def _convolution_points(operation: Any, filter_layout: str) -> float:
    """Return the multiplications of a convolution: its results times the filter's elements for each of them."""
    weights, result = shape_of(operation.operands[1]), shape_of(operation.operands[len(operation.operands) - 1])
    outputs = weights[filter_layout.index("f")] if "f" in filter_layout else weights[filter_layout.index("c")]
    return math.prod(result) * math.prod(weights) / outputs


def _add_traffic(operation: Any, cost: DispatchCost) -> None:
    if operation.name == LOAD and not _is_read_in_part(operation.results[0]):
        cost.read_bytes += size_bytes(operation.results[0])
    elif operation.name == GATHER:
        cost.read_bytes += size_bytes(operation.operands[len(operation.operands) - 1])
    elif operation.name == SCATTER or (
        operation.name == STORE and getattr(operation.operands[0].owner, "name", "") != SCATTER
    ):
        cost.written_bytes += size_bytes(operation.operands[0])


def _is_read_in_part(value: Any) -> bool:
    """Whether a loaded tensor is only gathered from, or scattered to."""
    uses = [(use.owner.operation.name, use.operand_number) for use in value.uses]
    parts = {(EXTRACT, 0), (GATHER, 0), (SCATTER, 2)}
    return bool(uses) and all(use in parts for use in uses)
