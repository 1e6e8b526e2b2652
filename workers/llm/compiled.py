"""torch's own compiler, with the knobs of its inductor that a job turns."""

import difflib
import os
from typing import Any

import torch

from workers.llm.program import BadInput, parse_overrides

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
MOST_VERSIONS = 64  #: of one module: one for each shape that it is called with


def compiled(model: Any, mode: str, knobs: list[str]) -> Any:
    """The model, to be compiled when it is first called with arguments of a shape. Raises BadInput for unknown knobs.

    What it makes is kept in the working folder: times of compiling are times of compiling all of it.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("inductor")
    torch._dynamo.config.recompile_limit = MOST_VERSIONS
    turn(knobs)
    return torch.compile(model, mode=mode, dynamic=False)


def turn(knobs: list[str]) -> None:
    """Set inductor's knobs: `freezing=true`, `max_autotune_gemm_backends="TRITON"`."""
    import torch._inductor.config as config

    known: dict[str, Any] = config.get_config_copy()
    for name, value in parse_overrides(knobs).items():
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known)) or "torch._inductor.config lists them"
            raise BadInput(f"torch.inductor: torch {torch.__version__} has no knob {name}; did you mean {near}?")
        setattr(config, name, value)
