"""Power cuts: what was published is there and whole afterwards, and what was not is not believed to be."""

import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from jobs.models import SHIPPED
from jobs.task import Artifact
from workers.artifacts import Soundness
from workers.artifacts.folder import FolderBackend
from workers.artifacts.verification_cache import VerificationCache
from workers.durability import Disk, boot_id
from workers.inputs.content_digests import ContentDigests

CONTENT = b"module {}" * 1000


class PowerCut(Exception):
    """The power is cut, at the beginning of a sync."""


class CuttableDisk(Disk):
    """A disk that keeps nothing at a power cut but what was synced."""

    def __init__(self, root: Path, syncs_until_cut: int | None = None) -> None:
        self._root, self._left = root, syncs_until_cut
        self._contents: dict[int, bytes] = {}  #: by inode
        self._names: dict[Path, dict[str, int]] = {}  #: by folder
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            self._keep_names(folder)
        for file in (path for path in root.rglob("*") if path.is_file()):
            self._contents[file.stat().st_ino] = file.read_bytes()

    def sync_file(self, file: Path) -> None:
        self._count()
        super().sync_file(file)
        self._contents[file.stat().st_ino] = file.read_bytes()

    def sync_folder(self, folder: Path) -> None:
        self._count()
        super().sync_folder(folder)
        self._keep_names(folder)

    def cut(self) -> None:
        """Leave what a power cut would: nothing of what was not synced."""
        self._cut_folder(self._root)

    def _keep_names(self, folder: Path) -> None:
        self._names[folder] = {path.name: path.stat().st_ino for path in folder.iterdir()}

    def _cut_folder(self, folder: Path) -> None:
        kept = self._names.get(folder, {})
        for path in folder.iterdir():
            inode = path.stat().st_ino
            if kept.get(path.name) != inode:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.is_dir():
                self._cut_folder(path)
            else:
                path.chmod(0o600)
                path.write_bytes(self._contents.get(inode, b""))

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise PowerCut


def made(folder: Path, content: bytes = CONTENT) -> tuple[Path, Artifact]:
    """What a stage has just written, and nobody has synced."""
    file = folder / "model.mlir"
    file.write_bytes(content)
    return file, Artifact(file.name, "mlir", sha256(content).hexdigest(), len(content))


def backend(root: Path, disk: CuttableDisk) -> FolderBackend:
    return FolderBackend(root / "artifacts", VerificationCache(None), disk=disk)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the store's folder."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.mark.parametrize("may_link", [True, False])
def test_a_published_file_survives(root: Path, tmp_path: Path, may_link: bool) -> None:
    disk = CuttableDisk(root)
    file, artifact = made(tmp_path)
    backend(root, disk).publish(file, artifact, may_link=may_link)
    disk.cut()
    assert backend(root, CuttableDisk(root)).check(artifact) is Soundness.SOUND


def test_a_file_that_is_published_again_survives_although_the_first_publisher_never_synced_it(
    root: Path, tmp_path: Path
) -> None:
    disk = CuttableDisk(root)
    file, artifact = made(tmp_path)
    store = backend(root, disk)
    store.path(artifact.sha256).parent.mkdir()
    disk.sync_folder(store.path(artifact.sha256).parents[1])
    shutil.copyfile(file, store.path(artifact.sha256))
    store.publish(file, artifact, may_link=False)
    disk.cut()
    assert backend(root, CuttableDisk(root)).check(artifact) is Soundness.SOUND


@pytest.mark.parametrize("may_link", [True, False])
def test_a_file_is_there_whole_or_not_at_all_whenever_the_power_is_cut(
    root: Path, tmp_path: Path, may_link: bool
) -> None:
    file, artifact = made(tmp_path)
    states = []
    for syncs in range(100):
        shutil.rmtree(root)
        root.mkdir()
        disk = CuttableDisk(root, syncs)
        try:
            backend(root, disk).publish(file, artifact, may_link=may_link)
            has_ended = True
        except PowerCut:
            has_ended = False
        disk.cut()
        store = backend(root, CuttableDisk(root))
        states.append(store.check(artifact))
        store.publish(file, artifact, may_link=may_link)
        assert store.check(artifact) is Soundness.SOUND, "it can be published again"
        if has_ended:
            break
    assert states == [Soundness.MISSING] * syncs + [Soundness.SOUND]
    assert syncs >= 3


def replaced_as_by_a_power_cut(file: Path) -> None:
    """Change content, and neither size nor times."""
    stat = file.stat()
    with file.open("r+b") as stream:
        stream.write(bytes(512))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def started_again(record: Path) -> None:
    """Make a record one of before the machine was started."""
    text = record.read_text()
    assert boot_id() in text
    record.write_text(text.replace(boot_id(), "another-boot"))


def test_a_verified_file_is_read_again_after_the_machine_was_started_again(tmp_path: Path) -> None:
    file, artifact = made(tmp_path, os.urandom(1 << 20))
    VerificationCache(tmp_path / "verified").record(artifact.sha256, file.stat())
    replaced_as_by_a_power_cut(file)
    assert VerificationCache(tmp_path / "verified").is_sound(file, artifact, file.stat()), (
        "it was verified a moment ago"
    )
    started_again(tmp_path / "verified" / artifact.sha256)
    assert not VerificationCache(tmp_path / "verified").is_sound(file, artifact, file.stat())


def test_an_input_is_read_again_after_the_machine_was_started_again(tmp_path: Path) -> None:
    weights = SHIPPED / "tiny-llama" / "model.safetensors"
    digests = ContentDigests(tmp_path / "inputs")
    content = digests.read(weights)
    (record,) = (path for path in (tmp_path / "inputs").iterdir() if path.is_file())
    record.write_text(record.read_text().replace(content.sha256, "0" * 64))
    assert digests.read(weights).sha256 == "0" * 64, "the record is believed"
    started_again(record)
    assert digests.read(weights) == content
