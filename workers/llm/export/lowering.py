"""Lowering traced subgraphs from torch to builtin tensors, with the passes that iree-compile would run on them.

iree-compile does not do this itself, because it inlines every function on torch types (up to 3.13 it ignores their
inlining policy), and a program with a layer inlined 126 times takes half an hour to compile. It would also give public
torch functions an asynchronous calling convention.
"""

from iree.compiler import ir
from iree.compiler.passmanager import PassManager

from workers.llm.export.int4_kernel import define_kernels

#: the passes of iree-compile's torch input pipeline (3.13) up to the conversion of function signatures
_FUNCTION_PASSES = (
    "torch-iree-bitcast-tensor",
    "torch-reduce-op-variants",
    "torch-convert-custom-quant-op",
    "torch-decompose-complex-ops{legal-ops=aten.flatten.using_ints,aten.unflatten.int,aten.adaptive_avg_pool1d,"
    "aten.adaptive_avg_pool2d,aten.adaptive_max_pool1d,aten.scaled_dot_product_attention,aten.argmax,aten.argmin}",
    "torch-fuse-quantized-ops",
    "canonicalize",
    "torch-scalarize-shapes",
    "convert-torch-to-tmtensor",
    "torch-iree-tm-tensor-to-linalg-ext",
    "convert-torch-to-tensor",
    "torch-iree-torch-unstructured-to-linalg-ext",
    "convert-torch-to-linalg",
    "cse",
    "convert-torch-to-scf",
    "convert-torch-to-arith",
)
_PIPELINE = (
    f"builtin.module(func.func({','.join(_FUNCTION_PASSES)}),torch-func-backend-type-conversion,canonicalize,"
    "func.func(torch-finalizing-backend-type-conversion,canonicalize))"
)


def lower(module: ir.Module) -> None:
    """Lower every function of `module` in place."""
    with module.context:
        PassManager.parse(_PIPELINE).run(module.operation)
        define_kernels(module)
