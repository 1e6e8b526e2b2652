"""The toolchain environments of a data folder: built once, used by many, removed when unused for long.

An environment lies at toolchains/<its lock's digest>-<this haloctl>, and counts from when its RECORD is written: what
a killed build left does not. Beside it lies its lock file, which builds and removals lock exclusively, and users share;
the file's time is that of its latest use. By fcntl, not filelock, which has no shared locks on files.
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
from jobs.paths import path_part
from jobs.toolchain_table import result_packages
from jobs.toolchains import Lock, Toolchain
from workers.durability import DISK, replace_durably
from workers.processes.cancellation import Cancellation
from workers.toolchain_probe import COMPILER, compiler_flags, digest_of_programs, host_cpu
from workers.toolchains import overlay, uv
from workers.toolchains.resolving import PYTHON

CANT = "can't be built"
RECORD = "haloctl.json"
UNUSED_FOR_S = 30 * 24 * 3600.0
SCRATCH_LIFETIME_S = 24 * 3600.0  #: an older scratch folder was left by a build that was killed

PROBE = """
import json, sys
from importlib import metadata
versions = {}
for package in sys.argv[1:]:
    try:
        versions[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""


@dataclass(frozen=True)
class Built:
    """A built environment."""

    toolchain: Toolchain
    lines: tuple[str, ...]
    is_over: bool
    size_bytes: int  #: of its own files
    built_at: datetime
    used_at: datetime
    folder: Path


class Environments:
    """The environments of one data folder; every method may be called from any thread and process."""

    def __init__(self, data: Path) -> None:
        self.folder = data.absolute() / "toolchains"
        self.cache = data.absolute() / "cache"

    def build(self, lock: Lock, cancellation: Cancellation | None = None) -> Toolchain:
        """Build an environment unless it exists; of concurrent callers one builds it, and the others wait.

        Raises ToolchainUnusable; IndexUnreachable and StorageUnusable where a later try may succeed. A failed build
        leaves nothing behind.
        """
        toolchain = self.toolchain(lock.digest)
        if toolchain:
            return toolchain
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked(self._key(lock.digest), fcntl.LOCK_EX):
                return self.toolchain(lock.digest) or self._build(lock, cancellation)
        except OSError as error:
            raise StorageUnusable(f"toolchain {lock.name}", f"{error.strerror} ({error.filename})") from error

    def toolchain(self, digest: str) -> Toolchain | None:
        """Return the toolchain of a lock; None where it is not built here."""
        built = self.built(digest)
        return built.toolchain if built else None

    def built(self, digest: str) -> Built | None:
        """Return the environment of a lock; None where it is not built here."""
        return self._read(self.folder / self._key(digest))

    @contextmanager
    def use(self, digest: str) -> Iterator[Toolchain | None]:
        """A context with the toolchain of a lock, None where it is not built here; nobody removes it meanwhile."""
        key = self._key(digest)
        if not (self.folder / key).exists():
            yield None
            return
        with self._locked(key, fcntl.LOCK_SH) as lock_file:
            os.utime(lock_file)
            try:
                yield self.toolchain(digest)
            finally:
                os.utime(lock_file)

    def all(self) -> list[Built]:
        """Return all environments by name and age, those also of other installations that share the data folder."""
        environments = filter(None, map(self._read, self._folders()))
        return sorted(environments, key=lambda built: (built.toolchain.name, built.built_at))

    def gc(self, unused_for_s: float = UNUSED_FOR_S) -> list[Built]:
        """Remove environments that nobody has used for so long, what killed builds left, and uv's copies.

        Returns the environments removed. Those that are in use stay.
        """
        removed = []
        for folder in self._folders():
            with suppress(BlockingIOError), self._locked(folder.name, fcntl.LOCK_EX | fcntl.LOCK_NB):
                built = self._read(folder)
                if built is None or time.time() - built.used_at.timestamp() >= unused_for_s:
                    (folder / RECORD).unlink(missing_ok=True)
                    shutil.rmtree(folder, ignore_errors=True)
                    removed += [built] if built else []
        for scratch in self.folder.glob("build-*/"):
            with suppress(FileNotFoundError):
                if time.time() - scratch.stat().st_mtime > SCRATCH_LIFETIME_S:
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
            toolchain = self._install(lock, folder, cancellation)
            _write_record(folder, lock, toolchain)
            return toolchain
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _install(self, lock: Lock, folder: Path, cancellation: Cancellation | None) -> Toolchain:
        python = str(folder / "bin" / "python")
        with TemporaryDirectory(prefix="build-", dir=self.folder) as scratch:
            work = Path(scratch)
            (work / "lock").write_text("".join(f"{line}\n" for line in lock.lines))
            create = [uv.path(), "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)]
            install = [uv.path(), "pip", "install", "--quiet", "--python", python, "--no-deps", "-r", "lock"]
            install.append("--compile-bytecode")  # stages may not write any beside the packages
            uv.run(lock.name, CANT, [create, install], work, self.cache / "uv", cancellation)
            overlay.link_packages(folder, is_over=lock.is_over)
            packages = sorted({*result_packages(), *lock.versions})
            probe = [python, "-I", "-c", PROBE, *packages]
            output = uv.run(lock.name, CANT, [probe], work, self.cache / "uv", cancellation)
        versions = json.loads(output.splitlines()[-1])
        _expect_versions(lock, versions)
        compiler = folder / "bin" / COMPILER
        flags = compiler_flags(str(compiler)) if compiler.exists() else frozenset()
        return _toolchain(lock.name, lock.digest, versions, flags, folder, is_over=lock.is_over)

    def _forget_downloads(self) -> None:
        """Remove uv's copies, which share their disk blocks with what was built from them."""
        if "UV_CACHE_DIR" in os.environ:  # a cache that others use too
            return
        with suppress(HaloError, OSError), TemporaryDirectory(prefix="build-", dir=self.folder) as scratch:
            uv.run("uv", CANT, [[uv.path(), "cache", "clean", "--quiet"]], Path(scratch), self.cache / "uv")

    def _folders(self) -> Iterator[Path]:
        return (path for path in self.folder.glob("*-*/") if not path.name.startswith("build-"))

    def _key(self, digest: str) -> str:
        # scripts of an environment name its interpreter in line 1: each installation has environments of its own
        return f"{path_part(digest)[:16]}-{hashlib.sha256(overlay.installation_id().encode()).hexdigest()[:8]}"

    def _read(self, folder: Path) -> Built | None:
        try:
            record = json.loads((folder / RECORD).read_text())
            used_at = self._lock_path(folder.name).stat().st_mtime
        except (OSError, ValueError):
            return None
        if not os.access(folder / "bin" / "python", os.X_OK):  # the Python that it was made with is gone
            return None
        flags = frozenset(record["compiler_flags"])
        return Built(
            _toolchain(record["name"], record["digest"], record["versions"], flags, folder, is_over=record["is_over"]),
            tuple(record["lines"]),
            record["is_over"],
            record["size_bytes"],
            datetime.fromisoformat(record["built_at"]),
            datetime.fromtimestamp(used_at, UTC),
            folder,
        )

    def _lock_path(self, key: str) -> Path:
        return self.folder / f"{key}.lock"

    @contextmanager
    def _locked(self, key: str, operation: int) -> Iterator[int]:
        """A context that holds an environment's lock file, by an operation of flock(2)."""
        file = os.open(self._lock_path(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, operation)
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
    """Write the record that makes an environment count."""
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
    DISK.sync_file_system(folder)  # after a power cut there is no record without all of its files
    part = folder / f"{RECORD}.part"
    part.write_text(text)
    replace_durably(part, folder / RECORD)


def _expect_versions(lock: Lock, versions: Mapping[str, str]) -> None:
    """Raise ToolchainUnusable where other versions are imported than the lock says: what lies below it differs."""
    differences = [
        f"{package} is {versions.get(package, 'missing')}, not {lock.versions.get(package, 'missing')}"
        for package in sorted(lock.versions.keys() | versions.keys())
        if versions.get(package) != lock.versions.get(package)
    ]
    if differences:
        remedy = "install here what the head has, or resolve it anew with `haloctl toolchains update`"
        why = f"{', '.join(differences)}: {remedy}"
        raise ToolchainUnusable(lock.name, CANT, why)
