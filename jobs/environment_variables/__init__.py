"""The environment variables that stage processes may see: exact names, with what each is for and what it changes.

A variable that is not in the table stays with the agent; a site adds names with HALOCTL_STAGE_VARIABLES. Sources: AMD's
guides to LLM inference and to tuning MI300X; the documentation of ROCr, HIP (flags.hpp of CLR), rocBLAS, hipBLASLt,
MIOpen and RCCL; NCCL's user guide; torch (inductor/config.py, TunableOp), Triton (knobs), vLLM (envs.py), IREE, and the
hub. Masks of devices (HIP_VISIBLE_DEVICES, ...) are not in it: each attempt has its own.
"""

import difflib
from collections.abc import Mapping

from jobs.environment_variables import collectives, host, rocm, serving, torch
from jobs.environment_variables.variable import Effect, Variable
from jobs.masking import has_userinfo

__all__ = ["VARIABLES", "Effect", "Variable", "conditions", "variable_problem"]

ROWS: tuple[Variable, ...] = (
    *(*host.PROCESS, *host.NETWORK, *host.HOST_CPU, *host.IREE),
    *(*rocm.ROCM, *rocm.ROCM_LIBRARIES),
    *(*collectives.CUDA, *collectives.COLLECTIVES),
    *(*torch.TORCH, *torch.TORCH_COMPILE),
    *(*serving.VLLM, *serving.HUGGING_FACE),
)

#: The table, by name.
VARIABLES: dict[str, Variable] = {variable.name: variable for variable in ROWS}

#: What differs from machine to machine although the same is run: toolchains say which tools and libraries are used.
NO_CONDITION = frozenset({"PATH"})


def variable_problem(name: str, value: str) -> str | None:
    """Return why a job file can't set a variable."""
    row = VARIABLES.get(name)
    if row is None:
        close = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.8)
        return f"is not among the variables that stages may have{f'; did you mean {close[0]}?' if close else ''}"
    if row.names_file:
        return "names files, and is for a site to set on its nodes"
    return "has credentials in its value" if has_userinfo(value) else None


def conditions(environment: Mapping[str, str], site: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the variables of a stage that may change what is computed or how fast; `site` are a site's own names."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in site or (name in VARIABLES and VARIABLES[name].effect is not Effect.NEITHER))
        and name not in NO_CONDITION
    }
