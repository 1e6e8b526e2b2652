"""The artifact store, on real disks."""

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jobs.errors import ArtifactLost, StorageUnusable, UnsafePath
from jobs.task import Artifact
from tests.integration.disks import SMALL_DISK_BYTES, small_disk
from workers.artifacts import ArtifactStore

__all__ = ["small_disk"]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def made(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_is_found_by_what_is_in_it(store: ArtifactStore, tmp_path: Path) -> None:
    artifact = store.put(made(tmp_path, "model.vmfb", b"program"), "vmfb")
    digest = hashlib.sha256(b"program").hexdigest()
    assert artifact == Artifact("model.vmfb", "vmfb", digest, 7)
    assert store.path(digest) == tmp_path / "artifacts" / "sha256" / digest[:2] / digest
    assert store.path(digest).read_bytes() == b"program"


def test_equal_files_are_kept_once(store: ArtifactStore, tmp_path: Path) -> None:
    store.put(made(tmp_path, "one", b"same"), "log")
    store.put(made(tmp_path, "two", b"same"), "log")
    assert len(files_in(tmp_path / "artifacts" / "sha256")) == 1


def test_a_file_on_the_same_disk_takes_no_second_place_and_becomes_read_only(
    store: ArtifactStore, tmp_path: Path
) -> None:
    file = made(tmp_path, "large.irpa", b"parameters")
    artifact = store.put(file, "irpa")
    assert store.path(artifact.sha256).samefile(file)
    assert store.path(artifact.sha256).stat().st_mode & 0o777 == 0o444


def test_a_file_from_another_disk_is_copied(small_disk: Path, tmp_path: Path) -> None:
    store = ArtifactStore(small_disk / "artifacts")
    artifact = store.put(made(tmp_path, "model.mlir", b"module"), "mlir")
    assert store.verify(artifact)
    assert not store.path(artifact.sha256).samefile(tmp_path / "model.mlir")


def test_writers_of_the_same_file_do_no_harm_to_each_other(store: ArtifactStore, tmp_path: Path) -> None:
    content = os.urandom(1 << 20)
    files = [made(tmp_path, f"file{number}", content) for number in range(8)]
    artifacts: list[Artifact] = []
    threads = [threading.Thread(target=lambda file=file: artifacts.append(store.put(file, "irpa"))) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({artifact.sha256 for artifact in artifacts}) == 1
    assert len(artifacts) == 8
    assert [store.path(artifacts[0].sha256)] == files_in(tmp_path / "artifacts" / "sha256")


def test_processes_that_copy_the_same_file_into_a_store_do_no_harm_to_each_other(
    small_disk: Path, tmp_path: Path
) -> None:
    file = made(tmp_path, "model.irpa", os.urandom(100_000))
    program = "import sys; from pathlib import Path; from workers.artifacts import ArtifactStore\n"
    program += "print(ArtifactStore(Path(sys.argv[1])).put(Path(sys.argv[2]), 'irpa').sha256)"
    argv = [sys.executable, "-c", program, str(small_disk / "artifacts"), str(file)]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    digests = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    (digest,) = digests
    assert ArtifactStore(small_disk / "artifacts").verify(Artifact("model.irpa", "irpa", digest, 100_000))
    assert [path.name for path in files_in(small_disk) if path.stat().st_size] == [digest], "nothing is left beside it"


def test_a_copy_into_the_store_that_ended_in_the_middle_goes_on(small_disk: Path, tmp_path: Path) -> None:
    content = os.urandom(100_000)
    digest = hashlib.sha256(content).hexdigest()
    store = ArtifactStore(small_disk / "artifacts")
    (small_disk / "artifacts" / "incoming").mkdir()
    begun = made(small_disk / "artifacts" / "incoming", digest, content[:40_000] + b"torn")
    inode = begun.stat().st_ino
    artifact = store.put(made(tmp_path, "model.irpa", content), "irpa")
    assert store.path(digest).stat().st_ino == inode
    assert store.verify(artifact)


def test_a_file_that_was_verified_is_not_read_again_until_it_changes_or_a_day_is_over(
    store: ArtifactStore, tmp_path: Path
) -> None:
    artifact = store.put(made(tmp_path, "one", b"good"), "log")
    path = store.path(artifact.sha256)
    stat = path.stat()
    path.chmod(0o644)
    path.write_bytes(b"evil")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as if it had not been touched
    store.place(artifact, tmp_path / "not-noticed")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))  # not within the same tick of its clock
    with pytest.raises(ArtifactLost, match="damaged"):
        store.place(artifact, tmp_path / "noticed")


def test_a_damaged_file_is_told_from_a_good_one_and_replaced(store: ArtifactStore, tmp_path: Path) -> None:
    artifact = store.put(made(tmp_path, "one", b"good"), "log")
    kept = store.path(artifact.sha256)
    kept.unlink()
    kept.write_bytes(b"gone")
    assert store.has(artifact)
    assert not store.verify(artifact)
    kept.write_bytes(b"cut")
    assert not store.has(artifact)
    store.put(made(tmp_path, "two", b"good"), "log")
    assert store.verify(artifact)


def test_a_file_that_is_not_there_is_neither_had_nor_placed(store: ArtifactStore, tmp_path: Path) -> None:
    artifact = Artifact("model.mlir", "mlir", "0" * 64, 5)
    assert not store.has(artifact)
    assert not store.verify(artifact)
    with pytest.raises(ArtifactLost, match="is missing in the artifact store"):
        store.place(artifact, tmp_path / "model.mlir")


def test_a_placed_file_is_the_stored_one(store: ArtifactStore, tmp_path: Path) -> None:
    artifact = store.put(made(tmp_path, "one", b"content"), "log")
    store.place(artifact, tmp_path / "inputs" / "export" / "one")
    assert (tmp_path / "inputs" / "export" / "one").samefile(store.path(artifact.sha256))


def test_a_file_is_placed_on_another_disk_by_a_symbolic_link(small_disk: Path, tmp_path: Path) -> None:
    store = ArtifactStore(small_disk / "artifacts")
    artifact = store.put(made(tmp_path, "one", b"content"), "log")
    store.place(artifact, tmp_path / "inputs" / "one")
    assert (tmp_path / "inputs" / "one").is_symlink()
    assert (tmp_path / "inputs" / "one").read_bytes() == b"content"


def test_a_full_disk_leaves_nothing_half_written(small_disk: Path, tmp_path: Path) -> None:
    store = ArtifactStore(small_disk / "artifacts")
    with pytest.raises(StorageUnusable, match="no space is left on it"):
        store.put(made(tmp_path, "large", bytes(2 * SMALL_DISK_BYTES)), "irpa")
    assert [file for file in files_in(small_disk) if file.stat().st_size] == []


def test_a_digest_that_is_none_never_becomes_a_path(store: ArtifactStore) -> None:
    with pytest.raises(UnsafePath, match="is no sha256"):
        store.path("../../etc/passwd")


def test_a_store_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    made(tmp_path, "file", b"")
    with pytest.raises(StorageUnusable, match=r"artifact store .*/file/artifacts: Not a directory"):
        ArtifactStore(tmp_path / "file" / "artifacts")
