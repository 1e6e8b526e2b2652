"""Toolchains: named sets of pinned packages that stages run under."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from jobs.hashing import digest_of

DEFAULT = "default"  #: the packages that haloctl itself is installed with
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  #: a part of variants' names, so without `@` and blanks


@dataclass(frozen=True)
class ToolchainSpec:
    """What a toolchain is made of and what runs under it; everything else runs under the default."""

    packages: tuple[str, ...]  #: requirements, as pip writes them
    stages: tuple[str, ...] | None = None  #: None: all stages of its engines that are not portable
    engines: tuple[str, ...] = ("iree",)
    is_over: bool = True  #: its packages replace only those of the same names that haloctl is installed with
    without: tuple[str, ...] = ()  #: dependencies that are left out
    may_build: bool = False  #: packages without wheels are built, which runs their code where they are resolved


@dataclass(frozen=True)
class Toolchain:
    """A toolchain as it is installed on a machine."""

    name: str
    versions: Mapping[str, str]  #: of the packages that are part of a result; a missing package is left out
    host_cpu: str = ""  #: what `--iree-llvmcpu-target-cpu=host` means on this machine
    programs: str = ""  #: sha256 of the source of the stage programs
    compiler_flags: frozenset[str] = field(default_factory=frozenset)  #: names of the flags that its iree-compile knows
    lock: str = ""  #: the digest of its lock; empty for the packages that haloctl is installed with
    tools: tuple[str, ...] = ()  #: folders of its programs on this machine; empty: beside this interpreter


@dataclass(frozen=True)
class Lock:
    """A resolved toolchain, which installs the same packages wherever and whenever it is built."""

    name: str
    lines: tuple[str, ...]  #: exactly what is installed: `iree-base-compiler==3.12.0 --hash=sha256:...`
    versions: Mapping[str, str]  #: of the packages that are part of a result, including those that it lies over
    python: str  #: `3.11`
    is_over: bool
    source: str  #: a digest of what it was resolved from (`source_of`); another digest makes the lock stale

    @cached_property
    def digest(self) -> str:
        """The identity of its environment: equal environments are built once, whatever their names."""
        under = dict(self.versions) if self.is_over else {}
        return digest_of([list(self.lines), self.python, self.is_over, under])

    def toolchain(self, base: Toolchain, compiler_flags: frozenset[str] = frozenset()) -> Toolchain:
        """Return the toolchain that it becomes on a machine with `base` as the default toolchain."""
        return replace(
            base, name=self.name, versions=self.versions, compiler_flags=compiler_flags, lock=self.digest, tools=()
        )


def source_of(spec: ToolchainSpec, python: str, base: Toolchain) -> str:
    """Return a digest of everything that a toolchain is resolved from, apart from releases in the package index."""
    under = dict(base.versions) if spec.is_over else {}
    without = [list(spec.without)] if spec.without else []
    may_build = ["may build"] if spec.may_build else []
    return digest_of([list(spec.packages), spec.is_over, python, under, *without, *may_build])
