"""Compiling a model with torch.compile, with the inductor options that a job sets."""

import difflib
import os
from typing import Any

import torch

from workers.llm.command_line import BadInput, parse_overrides

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
RECOMPILE_LIMIT = 64  #: compiled versions of one module, one for each shape that it is called with


def compile_model(model: Any, mode: str, options: list[str]) -> Any:
    """Return the model, to be compiled on its first call with each shape. Raises BadInput for unknown options.

    The compiler's cache is in the working folder, so that compile times are those of an empty cache.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("inductor")
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    set_inductor_options(options)
    return torch.compile(model, mode=mode, dynamic=False)


def set_inductor_options(options: list[str]) -> None:
    """Set options of inductor, such as `freezing=true` or `max_autotune_gemm_backends="TRITON"`."""
    import torch._inductor.config as config

    known: dict[str, Any] = config.get_config_copy()
    for name, value in parse_overrides(options).items():
        if name not in known:
            matches = difflib.get_close_matches(name, known)
            hint = f"did you mean {', '.join(matches)}?" if matches else "torch._inductor.config lists them"
            raise BadInput(f"torch.inductor: torch {torch.__version__} has no option {name}; {hint}")
        setattr(config, name, value)
