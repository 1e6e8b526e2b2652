"""What programs are compiled for and run on: one row a target."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Flag:
    """A compiler flag under every name that releases of the compiler gave it; the first one known is used."""

    names: tuple[str, ...]
    value: str

    def spelled(self, known: Collection[str]) -> str:
        """The flag as a compiler that knows `known` accepts it; the newest name when nothing is known of it."""
        name = next((name for name in self.names if name in known), self.names[0])
        return f"{name}={self.value}"


@dataclass(frozen=True)
class Target:
    """A kind of device, how to compile for it and how the runtime reaches it."""

    hal_device: str  #: of --iree-hal-target-device; repeated with [i] for tensor parallelism
    runtime_device: str  #: of --device; `{index}` is the device's number among those of the attempt
    flags: tuple[Flag, ...]
    visible_devices: tuple[str, ...] = ()  #: variables that hide the other devices of a node from an attempt
    variables: Mapping[str, str] = field(default_factory=dict)  #: what its runtime is told in every attempt on it
    matrix_instruction: str = ""  #: what a dumped dispatch that uses the matrix units contains
    assembly_suffix: str = ""  #: of the files in which it is looked for
    fp8: str = ""  #: which e4m3 it computes with: "fn", as checkpoints hold it, or "fnuz"; empty: none that compiles
    torch_device: str = "cuda"  #: torch's name for it, which is the same for ROCm
    is_quiet: bool = False  #: a benchmark disturbs, and is disturbed by, whatever else runs on the node
    #: that may compute for others during a measurement, as a share of those that haloctl may use
    max_foreign_cpu_percent: float = 50.0


def _rocm(chip: str, fp8: str) -> Target:
    return Target(
        hal_device="hip",
        runtime_device="hip://{index}",
        # iree-base-compiler 3.13 calls it --iree-rocm-target, 3.9 knows --iree-hip-target only
        flags=(Flag(("--iree-rocm-target", "--iree-hip-target"), chip),),
        visible_devices=("HIP_VISIBLE_DEVICES",),
        # kernel arguments in the device's memory: AMD's LLM guide counts 2 to 3 us less for some kernels
        variables={"HIP_FORCE_DEV_KERNARG": "1"},
        matrix_instruction="v_mfma",
        assembly_suffix=".rocmasm",
        fp8=fp8,
    )


def _cuda(chip: str) -> Target:
    return Target(
        hal_device="cuda",
        runtime_device="cuda://{index}",
        flags=(Flag(("--iree-cuda-target",), chip),),
        visible_devices=("CUDA_VISIBLE_DEVICES",),
        variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},  # nvidia-smi's; by default CUDA puts the fastest first
    )


TARGETS: dict[str, Target] = {
    "cpu": Target(
        hal_device="local",
        runtime_device="local-task",  # `local-task://0` is refused; several devices are the same word repeated
        flags=(
            Flag(("--iree-hal-local-target-device-backends",), "llvm-cpu"),
            Flag(("--iree-llvmcpu-target-cpu",), "host"),
        ),
        fp8="fnuz",  # in software either way; so a program of MI300X runs here as it is
        torch_device="cpu",
        is_quiet=True,
        max_foreign_cpu_percent=10.0,
    ),
    "mi300x": _rocm("gfx942", "fnuz"),
    "mi325x": _rocm("gfx942", "fnuz"),
    "mi350x": _rocm("gfx950", "fn"),
    # iree-base-compiler 3.13 refuses sm_90; the driver compiles the PTX of sm_89 for the chip it finds. It has no fp8
    # for CUDA ("missing LLVMTranslationDialectInterface for arith.truncf"), so these rows have none
    "h100": _cuda("sm_89"),
    "h200": _cuda("sm_89"),
}


def fp8_problem(target: str, precisions: Collection[str]) -> str | None:
    """Why a variant in these precisions cannot be made for a target."""
    if "fp8" not in precisions or TARGETS[target].fp8:
        return None
    able = ", ".join(name for name, row in TARGETS.items() if row.fp8)
    return f"IREE compiles no fp8 for {target}; it does for {able}"


def compile_flags(target: str, count: int, known: Collection[str]) -> list[str]:
    """The flags that compile a program for `count` devices, as a compiler that knows `known` spells them."""
    row = TARGETS[target]
    devices = [row.hal_device] if count == 1 else [f"{row.hal_device}[{index}]" for index in range(count)]
    return [
        *(f"--iree-hal-target-device={device}" for device in devices),
        *(flag.spelled(known) for flag in row.flags),
    ]


def device_flags(target: str, count: int) -> list[str]:
    """The flags that give a program its devices at run time."""
    return [f"--device={TARGETS[target].runtime_device.format(index=index)}" for index in range(count)]
