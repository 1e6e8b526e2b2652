"""The table of the variables that stages see: complete for what AMD's guide names, and without secrets or masks."""

import re

import pytest

from jobs.environment_variables import ROWS, VARIABLES, Effect
from workers.environment import MASKS, SECRET

#: What AMD's guide to LLM inference on MI300X and its guide to tuning set, with what each changes.
OF_THE_GUIDE = {
    "HIP_FORCE_DEV_KERNARG": Effect.SPEED,
    "HSA_DISABLE_FRAGMENT_ALLOCATOR": Effect.SPEED,
    "HSA_TOOLS_LIB": Effect.SPEED,
    "NCCL_MIN_NCHANNELS": Effect.RESULT,
    "OPTIMIZE_EPILOGUE": Effect.RESULT,
    "PYTORCH_MIOPEN_SUGGEST_NHWC": Effect.RESULT,
    "PYTORCH_NO_HIP_MEMORY_CACHING": Effect.SPEED,
    "PYTORCH_TUNABLEOP_ENABLED": Effect.RESULT,
    "ROCM_DEBUG_AGENT_OPTIONS": Effect.NEITHER,
    "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": Effect.RESULT,
    "TORCHINDUCTOR_FREEZING": Effect.RESULT,
    "TORCHINDUCTOR_LAYOUT_OPTIMIZATION": Effect.RESULT,
    "TORCHINDUCTOR_MAX_AUTOTUNE": Effect.RESULT,
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": Effect.RESULT,
    "TORCH_COMPILE_DEBUG": Effect.NEITHER,
    "VLLM_USE_FLASH_ATTN_TRITON": Effect.RESULT,
}


@pytest.mark.parametrize(("name", "effect"), OF_THE_GUIDE.items())
def test_what_the_guides_set_is_in_the_table(name: str, effect: Effect) -> None:
    assert VARIABLES[name].effect is effect


def test_each_name_is_there_once_and_says_what_it_is_for() -> None:
    assert len(VARIABLES) == len(ROWS)
    assert all(variable.what_for for variable in ROWS)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) for name in VARIABLES)


def test_no_name_is_a_secrets_or_a_mask() -> None:
    assert not [name for name in VARIABLES if SECRET.search(name)]
    assert not MASKS & VARIABLES.keys()


def test_what_names_files_or_libraries_says_so() -> None:
    """A job file must not choose what a stage loads or where it writes."""
    by_name = re.compile(r"(_PATH|_DIR|_FILE|_LIB|_HOME|_CACHE|_PLUGIN|_FOLDER|_ROOT|_OUT|_PREFIX)$")
    no_files = {
        "AMD_COMGR_CACHE",
        "TORCHINDUCTOR_FX_GRAPH_CACHE",
        "TORCHINDUCTOR_AUTOGRAD_CACHE",
        "VLLM_LOGGING_PREFIX",
    }
    no_files |= {"VLLM_DISABLE_COMPILE_CACHE", "USE_PYTORCH_KERNEL_CACHE", "MIOPEN_DISABLE_CACHE"}
    no_files |= {"TORCH_NCCL_CUDA_EVENT_CACHE"}
    unmarked = {row.name for row in ROWS if by_name.search(row.name) and not row.names_file}
    assert unmarked == no_files
