"""Packages for toolchains, made here in milliseconds: uv installs them as it does any other, without a network.

A release of IREE made here (`iree-9.1` is a toolchain with it) hands on to the compiler and the runtime that haloctl is
installed with, so that stages run under it as under the default one.
"""

import sys
import tarfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile, ZipInfo

#: In a file that Python reads when it begins; it sleeps a second at a time.
WAIT = "import pathlib, time; list(map(time.sleep, iter(pathlib.Path({gate!r}).exists, False)))\n"

HAND_ON = """
import os, sys

def main():
    os.execv({tool!r}, [{tool!r}, *sys.argv[1:], *{flags!r}])
"""

#: A build backend that only says what the package is.
BACKEND = """
import pathlib

def prepare_metadata_for_build_wheel(folder, settings=None):
    {code}
    info = pathlib.Path(folder, "{stem}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: {package}\\nVersion: {version}\\n")
    return info.name
"""


def variables(folder: Path) -> dict[str, str]:
    """What tells uv to take packages from this folder and from nowhere else."""
    return {"UV_FIND_LINKS": str(folder), "UV_OFFLINE": "1"}


def iree(folder: Path, version: str, gate: Path | None = None, flags: Sequence[str] = ()) -> tuple[Path, Path]:
    """Build a release of IREE's compiler and runtime; no Python with it starts while a file `gate` exists.

    Its compiler adds some flags to those of its command line.
    """
    tool = str(Path(sys.executable).with_name("iree-compile"))
    module = {"handed_on.py": HAND_ON.format(tool=tool, flags=tuple(flags))}
    if gate:
        module["wait_for_gate.pth"] = WAIT.format(gate=str(gate))
    compiler = wheel(folder, "iree-base-compiler", version, module, scripts={"iree-compile": "handed_on:main"})
    return compiler, wheel(folder, "iree-base-runtime", version)


def wheel(
    folder: Path,
    package: str,
    version: str,
    modules: Mapping[str, str] | None = None,
    *,
    needs: Iterable[str] = (),
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """A package of Python modules (name and text), its requirements, and its tools (name, and module:function)."""
    stem = f"{package.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    requirements = "".join(f"Requires-Dist: {need}\n" for need in needs)
    entries = "".join(f"{name} = {where}\n" for name, where in (scripts or {}).items())
    files = {
        **(modules or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{requirements}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{entries}",
    }
    record = "".join(f"{name},{_hash(text)},{len(text.encode())}\n" for name, text in files.items())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(ZipInfo(name), text)  # without the time: the same bytes each time
    return path


def source(folder: Path, package: str, version: str, code: str) -> Path:
    """A source distribution whose build runs a line of Python and needs nothing; it can only be resolved."""
    stem = f"{package}-{version}"
    files = {
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
        "backend.py": BACKEND.format(code=code, stem=stem, package=package, version=version),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{stem}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, BytesIO(text.encode()))
    return path


def _hash(text: str) -> str:
    return "sha256=" + urlsafe_b64encode(sha256(text.encode()).digest()).rstrip(b"=").decode()
