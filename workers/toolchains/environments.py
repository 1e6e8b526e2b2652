"""The environments of a data folder: built once, used by many, removed when nobody has used them for long.

An environment lies at toolchains/<its lock's digest>-<this haloctl>, and counts from when its RECORD is written: what
a killed build left does not. Beside it lies its lock file: whoever builds or removes it holds that alone, whoever uses
it together with others. The lock file's time is that of its latest use.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs.errors import HaloError, StorageUnusable, ToolchainUnusable
from jobs.toolchains import PACKAGES, Lock, Toolchain
from workers.environment import COMPILER, digest_of_programs, flags_of, host_cpu
from workers.processes import Cancellation
from workers.toolchains import overlay, uv
from workers.toolchains.resolving import PYTHON

CANT = "can't be built"
RECORD = "haloctl.json"
UNUSED_FOR_S = 30 * 24 * 3600.0
LEFT_BEHIND_S = 24 * 3600.0  #: what a build that was killed left is not looked at again by anybody

PROBE = """
import json, sys
from importlib import metadata
found = {}
for package in sys.argv[1:]:
    try:
        found[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Built:
    """An environment that lies here."""

    toolchain: Toolchain
    lines: tuple[str, ...]
    is_over: bool
    size_bytes: int  #: of its own files
    built_at: datetime
    used_at: datetime
    folder: Path


class Environments:
    """Those of one data folder; every method may be called from any thread and process."""

    def __init__(self, data: Path) -> None:
        self.folder = data.absolute() / "toolchains"
        self.cache = data.absolute() / "cache"

    def build(self, lock: Lock, cancellation: Cancellation | None = None) -> Toolchain:
        """Build an environment unless it is there; who comes second waits for the first.

        Raises ToolchainUnusable; IndexUnreachable and StorageUnusable where it may be tried again. Whatever it raises,
        nothing is left of it.
        """
        found = self.toolchain(lock.digest)
        if found:
            return found
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._held(self._key(lock.digest), fcntl.LOCK_EX):
                return self.toolchain(lock.digest) or self._build(lock, cancellation)
        except OSError as error:
            raise StorageUnusable(f"toolchain {lock.name}", f"{error.strerror} ({error.filename})") from error

    def toolchain(self, digest: str) -> Toolchain | None:
        """What stages run under with a lock; None: it is not built here."""
        found = self.built(digest)
        return found.toolchain if found else None

    def built(self, digest: str) -> Built | None:
        """The environment of a lock; None: there is none here."""
        return self._read(self.folder / self._key(digest))

    @contextmanager
    def use(self, digest: str) -> Iterator[Toolchain | None]:
        """The same, and nobody removes it meanwhile."""
        key = self._key(digest)
        if not (self.folder / key).exists():
            yield None
            return
        with self._held(key, fcntl.LOCK_SH) as stamp:
            os.utime(stamp)
            try:
                yield self.toolchain(digest)
            finally:
                os.utime(stamp)

    def all(self) -> list[Built]:
        """Every environment here, by name and age; also those of another haloctl that has the same data folder."""
        found = (self._read(folder) for folder in self._folders())
        return sorted((one for one in found if one), key=lambda one: (one.toolchain.name, one.built_at))

    def gc(self, unused_for_s: float = UNUSED_FOR_S) -> list[Built]:
        """Remove what nobody has used for so long, what killed builds left, and uv's copies; returns what was used
        once. What runs somewhere stays."""
        removed = []
        for folder in self._folders():
            with suppress(BlockingIOError), self._held(folder.name, fcntl.LOCK_EX | fcntl.LOCK_NB):
                found = self._read(folder)
                if found is None or time.time() - found.used_at.timestamp() >= unused_for_s:
                    (folder / RECORD).unlink(missing_ok=True)
                    shutil.rmtree(folder, ignore_errors=True)
                    removed += [found] if found else []
        for scratch in self.folder.glob("build-*/"):
            with suppress(FileNotFoundError):
                if time.time() - scratch.stat().st_mtime > LEFT_BEHIND_S:
                    shutil.rmtree(scratch, ignore_errors=True)
        if removed:
            self._forget_downloads()
        return removed

    def _build(self, lock: Lock, cancellation: Cancellation | None) -> Toolchain:
        if lock.python != PYTHON:
            why = f"it is for Python {lock.python}, and haloctl runs under {PYTHON} here"
            raise ToolchainUnusable(lock.name, CANT, why)
        folder = self.folder / self._key(lock.digest)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            toolchain = self._installed(lock, folder, cancellation)
            _write_record(folder, lock, toolchain)
            return toolchain
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _installed(self, lock: Lock, folder: Path, cancellation: Cancellation | None) -> Toolchain:
        python = str(folder / "bin" / "python")
        with TemporaryDirectory(prefix="build-", dir=self.folder) as scratch:
            work = Path(scratch)
            (work / "lock").write_text("".join(f"{line}\n" for line in lock.lines))
            make = [uv.path(), "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)]
            install = [uv.path(), "pip", "install", "--quiet", "--python", python, "--no-deps", "-r", "lock"]
            uv.run(lock.name, CANT, [make, install], work, self.cache / "uv", cancellation)
            overlay.connect(folder, is_over=lock.is_over)
            packages = sorted({*PACKAGES, *lock.versions})
            look = [python, "-I", "-c", PROBE, *packages]
            said = uv.run(lock.name, CANT, [look], work, self.cache / "uv", cancellation)
        versions = json.loads(said.splitlines()[-1])
        _expect_same(lock, versions)
        compiler = folder / "bin" / COMPILER
        flags = flags_of(str(compiler)) if compiler.exists() else frozenset()
        return _toolchain(lock.name, lock.digest, versions, flags, folder, is_over=lock.is_over)

    def _forget_downloads(self) -> None:
        """Let go of uv's copies, which share their disk blocks with what was built from them."""
        if "UV_CACHE_DIR" in os.environ:  # others' too
            return
        with suppress(HaloError, OSError), TemporaryDirectory(prefix="build-", dir=self.folder) as scratch:
            uv.run("uv", CANT, [[uv.path(), "cache", "clean", "--quiet"]], Path(scratch), self.cache / "uv")

    def _folders(self) -> Iterator[Path]:
        return (path for path in self.folder.glob("*-*/") if not path.name.startswith("build-"))

    def _key(self, digest: str) -> str:
        return f"{digest[:16]}-{hashlib.sha256(overlay.place().encode()).hexdigest()[:8]}"  # scripts have it in line 1

    def _read(self, folder: Path) -> Built | None:
        try:
            said = json.loads((folder / RECORD).read_text())
            stamp = self._stamp(folder.name).stat()
        except (OSError, ValueError):
            return None
        if not os.access(folder / "bin" / "python", os.X_OK):  # the Python that it was made with is gone
            return None
        flags = frozenset(said["compiler_flags"])
        return Built(
            _toolchain(said["name"], said["digest"], said["versions"], flags, folder, is_over=said["is_over"]),
            tuple(said["lines"]),
            said["is_over"],
            said["size_bytes"],
            datetime.fromisoformat(said["built_at"]),
            datetime.fromtimestamp(stamp.st_mtime, UTC),
            folder,
        )

    def _stamp(self, key: str) -> Path:
        return self.folder / f"{key}.lock"

    @contextmanager
    def _held(self, key: str, how: int) -> Iterator[int]:
        """An environment's lock file, held."""
        file = os.open(self._stamp(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, how)
            yield file
        finally:
            os.close(file)


def _toolchain(
    name: str, digest: str, versions: Mapping[str, str], flags: frozenset[str], folder: Path, *, is_over: bool
) -> Toolchain:
    below = [str(Path(sys.executable).parent)] if is_over else []
    return Toolchain(
        name=name,
        versions=versions,
        host_cpu=host_cpu(),
        programs=digest_of_programs(),
        compiler_flags=flags,
        lock=digest,
        tools=(str(folder / "bin"), *below),
    )


def _write_record(folder: Path, lock: Lock, toolchain: Toolchain) -> None:
    """Make an environment count."""
    text = json.dumps(
        {
            "name": lock.name,
            "digest": lock.digest,
            "lines": list(lock.lines),
            "is_over": lock.is_over,
            "versions": dict(toolchain.versions),
            "compiler_flags": sorted(toolchain.compiler_flags),
            "size_bytes": sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()),
            "built_at": datetime.now(UTC).isoformat(),
        }
    )
    part = folder / f"{RECORD}.part"
    part.write_text(text)
    part.replace(folder / RECORD)


def _expect_same(lock: Lock, versions: Mapping[str, str]) -> None:
    """Refuse an environment in which something else counts than the lock says: what lies below it is another."""
    told = [
        f"{package} is {versions.get(package, 'missing')}, not {lock.versions.get(package, 'missing')}"
        for package in sorted(lock.versions.keys() | versions.keys())
        if versions.get(package) != lock.versions.get(package)
    ]
    if told:
        why = f"{', '.join(told)}: install here what the head has, or resolve it anew with `haloctl toolchains update`"
        raise ToolchainUnusable(lock.name, CANT, why)
