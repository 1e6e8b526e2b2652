"""Assembling a program: lowered subgraphs become one module for `tp` devices.

Each decoder layer is a `util.func` that all layers of its kind call (`layer_assembly`). The entry points' functions own
the parameters and the cache, which are globals (`entry_assembly`).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from iree.compiler import ir

from workers.llm.export import mlir_ops
from workers.llm.export.entry_assembly import EntryPointAssembler, LayerFunction
from workers.llm.export.layer_assembly import LayerAssembler, stub_calls
from workers.llm.export.mlir_ops import emit
from workers.llm.export.program_globals import ProgramGlobals
from workers.llm.export.tracing import STUB_CALL, TracedProgram
from workers.llm.weights.archive_layout import ArchiveLayout

if TYPE_CHECKING:
    from workers.llm.export.taps import TapOutput


class ProgramAssembler:
    """Edits `module` in place; the module's context and a location must be entered.

    `tied` maps parameters to the name under which they are stored; `archives` are the layouts of the ranks' archives.
    """

    def __init__(
        self, module: ir.Module, tied: dict[str, str], archives: Sequence[ArchiveLayout], *, is_inlined: bool = False
    ) -> None:
        self.module = module
        self.is_inlined = is_inlined  #: layers may be, which are functions of their own else
        self.taps: dict[str, list[TapOutput]] = {}  #: results of each entry point after its logits
        self._tensors = ProgramGlobals(tied, archives)
        self._functions: dict[str, ir.Operation] = {}

    def run(self, programs: Iterable[TracedProgram]) -> None:
        """Turn all subgraphs of `programs` into one program."""
        self._functions = _convert_functions(self.module)
        for program in programs:
            self._drop_unused_inputs(program)
            layers: dict[str, LayerFunction] = {}
            for name, layer in program.layers.items():
                # a function is assembled for the first layer that calls it; in the others the weights lie alike
                if layer.symbol not in layers:
                    layers[layer.symbol] = self._assemble_layer(program, name)
            entry = EntryPointAssembler(self._functions[program.entry.name], program, layers, self._tensors)
            entry.run()
            self.taps[program.entry.name] = entry.taps
        self._tensors.declare(ir.InsertionPoint.at_block_begin(self.module.body))

    def _assemble_layer(self, program: TracedProgram, name: str) -> LayerFunction:
        layer = program.layers[name]
        function = self._functions[layer.symbol]
        assembler = LayerAssembler(function, name, layer, program.stream, self._tensors)
        required = assembler.run(self.is_inlined)
        if program.stream.tp > 1:
            function.move_before(self._functions[program.entry.name])
        return LayerFunction(function, required, assembler.taps)

    def _drop_unused_inputs(self, program: TracedProgram) -> None:
        """Remove the inputs that a block never reads, so that they are not sent to it."""
        for block in {block.symbol: block for block in program.all_blocks()}.values():
            function = self._functions[block.symbol]
            body = function.regions[0].blocks[0]
            used = [mlir_ops.is_used(argument) for argument in body.arguments][: len(block.call.inputs)]
            for index in reversed(range(len(used))):
                if not used[index]:
                    body.erase_argument(index)
            block.used_inputs = tuple(index for index, is_used in enumerate(used) if is_used)
            mlir_ops.renew_type(function)
            if any(stub_calls(function)):
                block.spread = function


def _convert_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """Turn func.func into util.func, which supports an inlining policy, and drop the declarations of stub calls."""
    functions = {}
    for view in list(module.body.operations):
        old = view.operation
        if old.name != "func.func":  # a kernel, which is a util.func already
            continue
        symbol = ir.StringAttr(old.attributes["sym_name"]).value
        if not symbol.startswith(STUB_CALL):
            functions[symbol] = _as_util_function(module, old, symbol)
        old.erase()
    return functions


def _as_util_function(module: ir.Module, old: ir.Operation, symbol: str) -> ir.Operation:
    attributes = {"sym_name": ir.StringAttr.get(symbol), "function_type": old.attributes["function_type"]}
    if "." in symbol:  # a subgraph; entry points are public
        attributes["sym_visibility"] = ir.StringAttr.get("private")
    new = emit("util.func", ir.InsertionPoint(module.body), regions=1, **attributes)
    old.regions[0].blocks[0].append_to(new.regions[0])
    mlir_ops.replace_return(new, [])
    return new
