"""The table of targets: the devices that programs are compiled for and run on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Flag:
    """A compiler flag under each name that releases of the compiler have for it, the newest first."""

    names: tuple[str, ...]
    value: str

    def spelled(self, known: Collection[str]) -> str:
        """Return the flag under the first of its names in `known`, or else under its newest name."""
        name = next((name for name in self.names if name in known), self.names[0])
        return f"{name}={self.value}"


@dataclass(frozen=True)
class Target:
    """A kind of device: how to compile for it, and how the runtime reaches it."""

    hal_device: str  #: value of --iree-hal-target-device; with several devices it is repeated with an index, hip[0]
    runtime_device: str  #: value of --device; `{index}` is the device's number among those of the attempt
    flags: tuple[Flag, ...]
    visible_devices: tuple[str, ...] = ()  #: environment variables that hide a node's other devices from an attempt
    variables: Mapping[str, str] = field(default_factory=dict)  #: environment variables of its runtime in every attempt
    matrix_instruction: str = ""  #: the beginning of its names in dumped assembly; empty: they are not counted
    assembly_suffix: str = ""  #: of the files with dumped assembly
    fp8: str = ""  #: its kind of e4m3: "fn", as in checkpoints, or "fnuz"; empty: IREE compiles none for it
    torch_device: str = "cuda"  #: its name in torch, which is the same for ROCm
    is_exclusive: bool = (
        False  #: benchmarks need the node for themselves by default, as they share its cores with all other load
    )
    #: share of haloctl's cores that foreign processes may use during a measurement until it counts as disturbed
    max_foreign_cpu_percent: float = 50.0


def _rocm(chip: str, fp8: str) -> Target:
    return Target(
        hal_device="hip",
        runtime_device="hip://{index}",
        # iree-base-compiler 3.13 has --iree-rocm-target, 3.9 only --iree-hip-target
        flags=(Flag(("--iree-rocm-target", "--iree-hip-target"), chip),),
        visible_devices=("HIP_VISIBLE_DEVICES",),
        # kernel arguments in the device's memory: AMD's LLM guide measures 2 to 3 us less for some kernels
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
        variables={
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID"
        },  # the order of nvidia-smi; by default CUDA puts the fastest device first
    )


TARGETS: dict[str, Target] = {
    "cpu": Target(
        hal_device="local",
        runtime_device="local-task",  # the runtime refuses `local-task://0`; for several devices the word is repeated
        flags=(
            Flag(("--iree-hal-local-target-device-backends",), "llvm-cpu"),
            Flag(("--iree-llvmcpu-target-cpu",), "host"),
        ),
        fp8="fnuz",  # in software either way, so programs for MI300X run here unchanged
        torch_device="cpu",
        is_exclusive=True,
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


def fp8_targets() -> list[str]:
    """Return the targets that IREE compiles fp8 for."""
    return [name for name, target in TARGETS.items() if target.fp8]


def compile_flags(target: str, count: int, known: Collection[str]) -> list[str]:
    """Return the flags that compile a program for `count` devices; `known` are the compiler's flag names."""
    row = TARGETS[target]
    devices = [row.hal_device] if count == 1 else [f"{row.hal_device}[{index}]" for index in range(count)]
    return [
        *(f"--iree-hal-target-device={device}" for device in devices),
        *(flag.spelled(known) for flag in row.flags),
    ]


def device_flags(target: str, count: int) -> list[str]:
    """Return the flags that give a program its devices at run time."""
    return [f"--device={TARGETS[target].runtime_device.format(index=index)}" for index in range(count)]
