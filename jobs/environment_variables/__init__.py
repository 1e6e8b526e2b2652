"""The environment variables that stage processes may see: exact names, with what each is for and what it changes.

A variable that is not in the table stays with the agent; a site adds names with HALOCTL_STAGE_VARIABLES. Sources: AMD's
guides to LLM inference and to tuning MI300X; the documentation of ROCr, HIP (flags.hpp of CLR), rocBLAS, hipBLASLt,
MIOpen and RCCL; NCCL's user guide; torch (inductor/config.py, TunableOp), Triton (knobs), vLLM (envs.py), IREE, and the
hub. Masks of devices (HIP_VISIBLE_DEVICES, ...) are not in it: each attempt has its own.
"""

from jobs.environment_variables import collectives, host, rocm, serving, torch
from jobs.environment_variables.variable import Effect, Variable

__all__ = ["VARIABLES", "Effect", "Variable"]

ROWS: tuple[Variable, ...] = (
    *(*host.PROCESS, *host.NETWORK, *host.HOST_CPU, *host.IREE),
    *(*rocm.ROCM, *rocm.ROCM_LIBRARIES),
    *(*collectives.CUDA, *collectives.COLLECTIVES),
    *(*torch.TORCH, *torch.TORCH_COMPILE),
    *(*serving.VLLM, *serving.HUGGING_FACE),
)

#: The table, by name.
VARIABLES: dict[str, Variable] = {variable.name: variable for variable in ROWS}
