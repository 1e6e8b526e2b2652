"""What a node keeps of a remote store: within its bound, and never removed under somebody's hands."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from jobs.errors import BadSetting
from jobs.task import Artifact
from tests.integration.disks import SMALL_DISK_BYTES, small_disk
from tests.integration.object_stores import SMALL
from workers.artifacts import ArtifactStore, cache
from workers.artifacts.cache import ArtifactCache
from workers.artifacts.verification_cache import VerificationCache

__all__ = ["small_disk"]

FILE_BYTES = 100_000
LIMIT_BYTES = 350_000  #: three files and a half


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"local://{tmp_path}/{uuid4().hex}/artifacts"


@pytest.fixture
def store(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    monkeypatch.setenv(cache.VARIABLE, str(LIMIT_BYTES / 1e9))
    return ArtifactStore(url, tmp_path / "cache", SMALL)


@pytest.fixture
def files(url: str, tmp_path: Path) -> list[Artifact]:
    """Files in the store that this node did not put there."""
    others = ArtifactStore(url, tmp_path / "others-cache", SMALL)
    artifacts = []
    for number in range(5):
        file = tmp_path / f"{number}.irpa"
        file.write_bytes(os.urandom(FILE_BYTES))
        artifacts.append(others.put(file, "irpa"))
    return artifacts


def kept(folder: Path) -> set[str]:
    return {path.name for path in (folder / "cache" / "files").glob("*")}


def test_what_was_used_longest_ago_goes_when_the_cache_is_full(
    store: ArtifactStore, files: list[Artifact], tmp_path: Path
) -> None:
    for number, artifact in enumerate(files[:3]):
        store.place(artifact, tmp_path / "placed" / str(number))
    store.place(files[0], tmp_path / "placed" / "again")
    store.place(files[3], tmp_path / "placed" / "3")
    assert kept(tmp_path) == {files[number].sha256 for number in (0, 2, 3)}
    assert (tmp_path / "placed" / "1").stat().st_size == FILE_BYTES, "what was placed stays"


def test_a_file_larger_than_the_cache_is_placed_all_the_same(url: str, store: ArtifactStore, tmp_path: Path) -> None:
    file = tmp_path / "large.irpa"
    file.write_bytes(os.urandom(LIMIT_BYTES * 4))
    artifact = ArtifactStore(url, tmp_path / "others-cache", SMALL).put(file, "irpa")
    store.place(artifact, tmp_path / "placed")
    assert (tmp_path / "placed").read_bytes() == file.read_bytes()
    assert kept(tmp_path) == set()


def test_what_somebody_holds_is_not_removed_by_another(tmp_path: Path) -> None:
    verified = VerificationCache(None)
    mine, others = (ArtifactCache(tmp_path / "cache", verified, limit_bytes=FILE_BYTES) for _ in range(2))
    first, second = (Artifact(str(number), "irpa", str(number) * 64, FILE_BYTES) for number in (1, 2))

    def fetch(path: Path) -> None:
        path.write_bytes(bytes(FILE_BYTES))

    with mine.hold(first, fetch) as held:
        with others.hold(second, fetch) as other:
            assert held.exists() and other.exists()
        assert held.exists() and not other.exists()
    assert kept(tmp_path) == {first.sha256}


def test_many_processes_share_a_cache_within_its_bound(
    url: str, store: ArtifactStore, files: list[Artifact], tmp_path: Path
) -> None:
    program = f"""
import random, sys
from pathlib import Path
from jobs.task import Artifact
from tests.integration.object_stores import SMALL
from workers.artifacts import ArtifactStore
url, cache, folder, *digests = sys.argv[1:]
store = ArtifactStore(url, Path(cache), SMALL)
for number in range(40):
    sha256 = random.choice(digests)
    store.place(Artifact("x", "irpa", sha256, {FILE_BYTES}), Path(folder) / str(number))
    assert (Path(folder) / str(number)).stat().st_size == {FILE_BYTES}
"""
    digests = [artifact.sha256 for artifact in files]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, url, str(tmp_path / "cache"), str(tmp_path / f"placed-{number}"), *digests]
        )
        for number in range(3)
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert sum(path.stat().st_size for path in (tmp_path / "cache" / "files").glob("*")) <= LIMIT_BYTES
    assert not list((tmp_path / "cache" / "incoming").glob("*"))


def test_a_damaged_file_in_the_cache_is_fetched_again(
    store: ArtifactStore, files: list[Artifact], tmp_path: Path
) -> None:
    path = store.local(files[0])
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(b"!" * len(content))
    later_ns = path.stat().st_mtime_ns + 10**9  # two writes may lie within one tick of the file system's clock
    os.utime(path, ns=(later_ns, later_ns))
    store.place(files[0], tmp_path / "placed")
    assert (tmp_path / "placed").read_bytes() == content


def test_what_this_node_made_is_not_fetched(url: str, store: ArtifactStore, tmp_path: Path) -> None:
    file = tmp_path / "model.irpa"
    file.write_bytes(os.urandom(FILE_BYTES))
    artifact = store.put(file, "irpa")
    assert store.local(artifact).samefile(file)


def test_a_full_disk_is_told_and_keeps_nothing_half_fetched(url: str, small_disk: Path, tmp_path: Path) -> None:
    file = tmp_path / "large.irpa"
    file.write_bytes(os.urandom(2 * SMALL_DISK_BYTES))
    artifact = ArtifactStore(url, tmp_path / "others-cache", SMALL).put(file, "irpa")
    with pytest.raises(OSError, match="No space left"):
        ArtifactStore(url, small_disk / "cache", SMALL).place(artifact, small_disk / "placed")
    assert [path for path in small_disk.rglob("*") if path.is_file() and path.stat().st_size] == []


@pytest.mark.parametrize("setting", ["much", "-1", "inf", "nan", ""])
def test_a_bound_that_is_no_number_is_told(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(cache.VARIABLE, setting)
    with pytest.raises(BadSetting, match="HALOCTL_CACHE_GB"):
        ArtifactStore(url, tmp_path / "cache")
