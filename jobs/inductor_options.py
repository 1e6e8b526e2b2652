"""The options of torch._inductor.config that job files may set: those that only change which code is generated.

The module also has options that name compilers and folders. `torch/_inductor/config.py` says what each option does.
"""

import difflib
from typing import Any

from jobs.tool_options import COUNT, NAME, REAL, SWITCH, Kind

#: by the kind of their values
_NAMES: dict[Kind, str] = {
    SWITCH: """
        aggressive_fusion allow_buffer_reuse assume_aligned_inputs autotune_multi_device batch_fusion
        batch_invariant benchmark_combo_kernel benchmark_epilogue_fusion benchmark_fusion benchmark_kernel
        combo_kernels constant_and_index_propagation conv_1x1_as_mm coordinate_descent_check_all_directions
        coordinate_descent_tuning cpp.dynamic_threads cpp.enable_concat_linear cpp.enable_grouped_gemm_template
        cpp.enable_kernel_profile cpp.enable_loop_tail_vec cpp.enable_tiling_heuristics
        cpp.enable_unsafe_math_opt_flag cpp.fallback_scatter_reduce_sum cpp.force_inline_kernel
        cpp.no_redundant_loops cpp.use_decompose_tanh cpp.use_small_dequant_buffer cpp.weight_prepack
        cpp_wrapper dce decompose_mem_bound_mm deterministic disable_progress dynamic_scale_rblock
        efficient_conv_bn_eval_fx_passes emulate_precision_casts epilogue_fusion epilogue_fusion_first
        fallback_random force_fuse_int_mm_with_mul force_layout_optimization force_pointwise_cat freezing
        freezing_discard_parameters graph_partition group_fusion inplace_buffers inplace_padding
        keep_output_stride layout_optimization loop_ordering_after_fusion max_autotune max_autotune_gemm
        max_autotune_pointwise memory_planning nan_asserts optimize_scatter_upon_const_tensor pad_outputs
        pattern_matcher permute_fusion pick_loop_orders prologue_fusion reorder_for_compute_comm_overlap
        reorder_for_locality reorder_for_peak_memory shape_padding size_asserts split_cat_fx_passes
        split_reductions static_weight_shapes strict_static_cuda_launcher triton.autotune_at_compile_time
        triton.autotune_cublasLt triton.autotune_pointwise triton.coalesce_tiling_analysis
        triton.codegen_upcast_to_fp32 triton.cooperative_reductions triton.cudagraph_skip_dynamic_graphs
        triton.cudagraph_support_input_mutation triton.cudagraph_trees triton.cudagraphs triton.dense_indexing
        triton.divisible_by_16 triton.enable_pdl triton.enable_persistent_tma_matmul
        triton.force_cooperative_reductions triton.persistent_reductions triton.prefer_nd_tiling
        triton.skip_l1_cache triton.slow_path_cudagraph_asserts triton.tile_reductions
        triton.tiling_prevents_pointwise_fusion triton.tiling_prevents_reduction_fusion
        triton.unique_kernel_names triton.use_block_ptr triton.use_tensor_descriptor
        unsafe_ignore_unsupported_triton_autotune_args use_fast_math use_mixed_mm use_static_cuda_launcher
        """,
    COUNT: """
        combo_kernel_allow_mixed_sizes combo_kernels_autotune compile_threads coordinate_descent_search_radius
        cpp.gemm_max_k_slices cpp.max_horizontal_fusion_size cpp.min_chunk_size cpp.simdlen cpp.threads
        max_epilogue_benchmarked_choices max_fusion_buffer_group_pairwise_attempts max_fusion_size
        max_pointwise_cat_inputs padding_alignment_bytes padding_stride_threshold realize_acc_reads_threshold
        realize_opcount_threshold realize_reads_threshold rocm.ck_max_profiling_configs
        rocm.ck_tile_max_profiling_configs rocm.n_max_profiling_configs triton.max_tiles
        triton.min_split_scan_rblock triton.multi_kernel triton.spill_threshold unroll_reductions_threshold
        """,
    REAL: "score_fusion_memory_threshold",
    NAME: """
        cpp.enable_floating_point_contract_flag cpp.gemm_cache_blocking cpp.gemm_thread_factors
        layout_opt_default max_autotune_conv_backends max_autotune_gemm_backends max_autotune_gemm_search_space
        mixed_mm_choice
        """,
}  # fmt: skip

INDUCTOR_OPTIONS: dict[str, Kind] = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def inductor_problem(name: str, value: Any) -> str | None:
    """Return why a job file can't set an option to a value."""
    kind = INDUCTOR_OPTIONS.get(name)
    if kind is None:
        close = difflib.get_close_matches(name, INDUCTOR_OPTIONS, n=1)
        hint = f"did you mean {close[0]}?" if close else "there are " + ", ".join(INDUCTOR_OPTIONS)
        return f"is not among the options that only change which code is generated: {hint}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return None if kind.allows(text) else f"should be {kind.description}, not {text[:100]!r}"
