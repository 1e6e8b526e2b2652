"""What is installed beside this interpreter, and what this machine's processor is: the default toolchain."""

import hashlib
import json
import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from jobs import models
from jobs.toolchain_table import result_packages
from jobs.toolchains import DEFAULT, Toolchain
from workers.durability import write_atomically
from workers.environment import find_tool, packages_root, stage_environment

COMPILER = "iree-compile"
COMPILER_PACKAGE = "iree-base-compiler"
COMPILER_TIMEOUT_S = 60
FLAG = re.compile(r"^\s+(--[a-zA-Z0-9][\w-]*)", re.MULTILINE)


def probe_toolchain(cache: Path, name: str = DEFAULT) -> Toolchain:
    """Return the toolchain installed beside this interpreter; `cache` keeps the flags that the compiler listed."""
    versions = {}
    for package in result_packages():
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return Toolchain(
        name=name,
        versions=versions,
        host_cpu=host_cpu(),
        programs=digest_of_programs(),
        compiler_flags=_cached_compiler_flags(cache, versions.get(COMPILER_PACKAGE, "")),
    )


def host_cpu() -> str:
    """Return the name of this machine's processor, and a digest of its instruction sets."""
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
        name = fields.get("model name") or fields.get("CPU part", "")
        features = " ".join(sorted((fields.get("flags") or fields.get("Features", "")).split()))
        return f"{platform.machine()} {name} {hashlib.sha256(features.encode()).hexdigest()[:8]}"
    return platform.machine()


def digest_of_programs() -> str:
    """Return a digest of what stage programs import of haloctl, and of the texts that they read by default."""
    texts = sorted(models.SHIPPED.glob("*/*.txt"))
    sources = [*sorted((packages_root() / "workers" / "llm").rglob("*.py")), Path(models.__file__), *texts]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.name}\0{hashlib.sha256(source.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def compiler_flags(compiler: str) -> frozenset[str]:
    """Return the names of the flags that a compiler lists in its help; none where it can't be run."""
    with suppress(OSError, subprocess.TimeoutExpired):
        return parse_flags(
            subprocess.run(
                [compiler, "--help"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMPILER_TIMEOUT_S,
                env=stage_environment(),
                check=False,
            ).stdout
        )
    return frozenset()


def parse_flags(help_text: str) -> frozenset[str]:
    """Return the names of all flags that a help text lists."""
    return frozenset(FLAG.findall(help_text))


def _cached_compiler_flags(cache: Path, version: str) -> frozenset[str]:
    """Return the names of the flags of the installed compiler, from the cache if the same file was asked before."""
    path = find_tool(COMPILER)
    if path is None:
        return frozenset()
    identity = f"{path}\0{version}\0{os.stat(path).st_mtime_ns}"
    file = cache / f"compiler-flags-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError):
        return frozenset(json.loads(file.read_text()))
    flags = compiler_flags(path)
    if flags:
        with suppress(OSError):  # without a cache it is only slower
            write_atomically(file, json.dumps(sorted(flags)))
    return flags
