"""Lowering the traced pieces from torch to builtin tensors, with the passes that iree-compile would run on them.

It is done here, and not left to iree-compile, because a function on torch types cannot be kept from being inlined
(its inlining policy is ignored up to 3.13), and a layer that is inlined 126 times makes a program that takes half an
hour to compile. Public torch functions would also get an asynchronous calling convention that nobody here asks for.
"""

from iree.compiler import ir
from iree.compiler.passmanager import PassManager

from workers.llm.int4_kernel import define_kernels

#: what iree-compile's torch input pipeline runs, up to the conversion of the functions' signatures (3.13)
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
