"""The flags of iree-compile that job files may set: those that only change which code is generated.

iree-compile also has flags that run other programs, load plugins, and read or write files anywhere. They are in no job
file, nor are those that haloctl sets itself. `iree-compile --help` says what each flag does; names of earlier releases
are here too.
"""

import difflib
from collections.abc import Collection

from jobs.tool_options import COUNT, EITHER, LEVEL, NAME, REAL, SWITCH, Kind, choice

ENCODINGS = choice("generic", "padding", "packed", "none")

#: Flags without `--iree-` in front, by the kind of their values.
_NAMES: dict[Kind, str] = {
    SWITCH: """
        codegen-enable-default-tuning-specs codegen-llvmgpu-enable-outer-reduction-tile-and-fuse
        codegen-llvmgpu-igemm-pad-convolution codegen-llvmgpu-test-tile-and-fuse-matmul
        codegen-llvmgpu-test-tile-and-fuse-vectorize codegen-llvmgpu-use-direct-convolution
        codegen-llvmgpu-use-igemm codegen-llvmgpu-use-mma-sync codegen-llvmgpu-use-reduction-vector-distribution
        codegen-llvmgpu-use-tile-and-fuse-convolution codegen-llvmgpu-use-tile-and-fuse-matmul
        codegen-llvmgpu-use-unaligned-gemm-vector-distribution codegen-llvmgpu-use-vector-distribution
        codegen-llvmgpu-use-wmma codegen-llvmgpu-vectorize-pipeline codegen-mmt4d-use-intrinsics cuda-use-ptxas
        dispatch-creation-data-tiling dispatch-creation-element-wise-fuse-multi-reduction
        dispatch-creation-enable-aggressive-fusion dispatch-creation-enable-aggressive-reshape-movement
        dispatch-creation-enable-detensoring dispatch-creation-enable-early-trunc-fusion
        dispatch-creation-enable-fuse-horizontal-contractions
        dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops
        dispatch-creation-enable-fuse-padding-into-linalg-producer-ops dispatch-creation-enable-multi-use-fusion
        dispatch-creation-enable-split-reduction dispatch-creation-experimental-data-tiling
        dispatch-creation-experimental-multi-use-encoding-fusion dispatch-creation-fuse-multi-use
        dispatch-creation-propagate-collapse-across-expands dispatch-creation-split-reduction-low-parallelism
        flow-enable-aggressive-fusion flow-enable-fuse-multi-use flow-enable-pad-handling
        flow-experimental-replicate-globals-per-affinity flow-zero-fill-empty-tensors global-opt-data-tiling
        global-opt-enable-attention-v-transpose global-opt-enable-demote-contraction-inputs-to-bf16
        global-opt-enable-early-materialization global-opt-enable-fuse-silu-horizontal-matmul
        global-opt-enable-qdq-to-integer-math global-opt-enable-quantized-matmul-reassociation
        global-opt-enable-sink-transpose-through-pad global-opt-experimental-enable-edge-reshape-propagation
        global-opt-experimental-rocm-data-tiling global-opt-propagate-transposes
        global-opt-propagate-transposes-through-conv global-opt-use-im2col-for-convs
        hal-external-resources-mappable hal-force-indirect-command-buffers hal-indirect-command-buffers
        hal-link-executables hal-memoization hip-legacy-sync hip-specialize-dispatches input-demote-f32-to-f16
        input-demote-f64-to-f32 input-demote-i64-to-i32 input-promote-bf16-to-f32 input-promote-f16-to-f32
        llvmcpu-debug-symbols llvmcpu-disable-distribution llvmcpu-disable-vector-peeling
        llvmcpu-enable-inner-tiled llvmcpu-enable-scalable-vectorization
        llvmcpu-experimental-vectorize-to-transfer-gather llvmcpu-fail-on-large-vector
        llvmcpu-fail-on-out-of-bounds-stack-allocation llvmcpu-link-embedded llvmcpu-link-ukernel-bitcode
        llvmcpu-loop-interleaving llvmcpu-loop-unrolling llvmcpu-loop-vectorization
        llvmcpu-reassociate-fp-reductions llvmcpu-skip-intermediate-roundings llvmcpu-slp-vectorization
        llvmcpu-use-decompose-softmax-fuse llvmcpu-use-fast-min-max-ops llvmgpu-enable-prefetch
        llvmgpu-enable-shared-memory-reuse llvmgpu-enable-small-float-emulation
        opt-aggressively-propagate-transposes opt-const-eval opt-const-expr-hoisting opt-data-tiling
        opt-generalize-matmul opt-numeric-precision-reduction opt-outer-dim-concat opt-strip-assertions
        preprocessing-pad-to-intrinsics rocdl-enable-buffer-instructions rocm-emit-debug-info
        rocm-enable-register-spill-warning rocm-enable-tensor-ukernels rocm-llvm-global-isel rocm-llvm-slp-vec
        rocm-specialize-dispatches rocm-use-spirv scheduling-optimize-bindings stream-annotate-input-affinities
        stream-emulate-memset stream-experimental-transfer-to-replicate-globals
        stream-experimental-unify-encoding-for-globals stream-resource-alias-mutable-bindings
        torch-decompose-complex-ops torch-enable-shape-refinement torch-externalize-transients
        torch-use-strict-symbolic-shapes util-zero-fill-elided-attrs vm-bytecode-module-strip-debug-ops
        vm-bytecode-module-strip-source-map vm-target-extension-f32 vm-target-extension-f64
        vm-target-optimize-for-stack-size vm-target-truncate-unsupported-floats
        """,
    COUNT: """
        codegen-linalg-max-constant-fold-elements codegen-llvmgpu-matmul-c-matrix-threshold
        dispatch-creation-split-argmax-threshold dispatch-creation-split-argmax-tile-size
        dispatch-creation-split-matmul-reduction flow-inline-constants-max-byte-length
        flow-split-matmul-reduction hal-benchmark-dispatch-repeat-count hal-executable-debug-level
        hip-waves-per-eu llvmcpu-distribution-size llvmcpu-matmul-tile-bytes
        llvmcpu-max-allowed-number-of-native-vectors llvmcpu-number-of-threads
        llvmcpu-stack-allocation-assumed-vscale llvmcpu-stack-allocation-limit
        llvmcpu-target-vector-width-in-bytes llvmgpu-prefetch-num-stages llvmgpu-shared-memory-limit
        opt-const-expr-max-size-increase-threshold rocm-waves-per-eu stream-affinity-solver-max-iterations
        stream-resource-index-bits stream-resource-max-allocation-size stream-resource-max-range
        stream-resource-min-offset-alignment vm-target-index-bits
        """,
    REAL: "linalgext-attention-softmax-max llvmcpu-matmul-tile-undercount-whole-matrix",
    LEVEL: """
        dispatch-creation-opt-level global-optimization-opt-level llvmcpu-mlir-opt-level opt-level
        """,
    NAME: """
        codegen-reorder-workgroups-strategy consteval-jit-target-device cuda-target cuda-target-features
        dispatch-creation-experimental-set-data-tiling-ops dispatch-creation-topk-split-reduction
        flow-topk-split-reduction hip-enable-ukernels hip-encoding-layout-resolver hip-target
        hip-target-features llvmcpu-enable-llvm-ukernels llvmcpu-enable-ukernels llvmcpu-target-abi
        llvmcpu-target-cpu llvmcpu-target-cpu-features llvmcpu-target-data-layout llvmcpu-target-triple
        llvmcpu-vscale-range rocm-enable-ukernels rocm-encoding-layout-resolver rocm-target rocm-target-features
        """,
    choice("none", "auto", "stablehlo", "torch", "tosa", "onnx"): "input-type",
    choice("host-only", "async-internal", "async-external", "inline-static", "inline-dynamic"): "execution-model",
    choice("discrete", "unified"): "stream-resource-memory-model",
    choice("debug", "min-peak-memory", "max-concurrency"): "stream-partitioning-favor",
    choice("synchronous", "asynchronous"): "scheduling-initialization-mode",
    choice("all", "conv", "matmul", "none"): "global-opt-demote-contraction-inputs-operations",
    choice("f16", "bf16", "none"): "global-opt-demote-contraction-inputs-type",
    ENCODINGS: "dispatch-creation-set-encoding-strategy global-opt-set-encoding-strategy",
    choice("peel", "mask", "none"): "llvmcpu-vector-pproc-strategy",
    choice("none", "address", "thread"): "llvmcpu-sanitize",
    choice("default", "soft", "hard"): "llvmcpu-target-float-abi",
    choice("x", "y", "z"): "llvmgpu-set-workgroup-distribution-along",
    choice("preserve-sign", "positive-zero"): "rocm-denormal-fp-math-f32",
}  # fmt: skip

COMPILER_FLAGS: dict[str, Kind] = {f"--iree-{name}": kind for kind, names in _NAMES.items() for name in names.split()}


def flag_problem(flag: str, site_flags: Collection[str] = ()) -> str | None:
    """Return why a job file can't set a flag; `site_flags` are names that the site allows as well."""
    name, equals, text = flag.partition("=")
    kind = EITHER if name in site_flags else COMPILER_FLAGS.get(name)
    if kind is None:
        close = difflib.get_close_matches(name, COMPILER_FLAGS, n=1, cutoff=0.85)
        hint = f"did you mean {close[0]}?" if close else "a site allows more by their names in HALOCTL_COMPILER_FLAGS"
        return f"{name} is not among the flags that only change which code is generated: {hint}"
    value = text if equals else None
    return None if kind.allows(value) else f"{name} should have {kind.description}, not {text[:100]!r}"
