"""Named sets of packages that stages run under, and what is known of an installed one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT = "default"

#: The packages whose versions are part of a result.
PACKAGES = (
    "torch",
    "transformers",
    "iree-base-compiler",
    "iree-base-runtime",
    "iree-turbine",
    "safetensors",
    "tokenizers",
)


@dataclass(frozen=True)
class Toolchain:
    """A toolchain as it was found on a machine."""

    name: str
    versions: Mapping[str, str]  #: installed versions of PACKAGES; a package that is missing is not in it
    host_cpu: str = ""  #: what `--iree-llvmcpu-target-cpu=host` means there
    programs: str = ""  #: sha256 of the source of the stage programs
    compiler_flags: frozenset[str] = field(default_factory=frozenset)  #: names of the flags that its iree-compile knows
