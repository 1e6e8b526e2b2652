"""The artifact store wherever it may lie: one suite over a folder, fsspec's file systems, S3 and Azure."""

import hashlib
import random
import threading
from pathlib import Path

import pytest

from jobs.errors import ArtifactLost, StorageUnusable
from jobs.task import Artifact
from tests.integration import object_stores
from tests.integration.object_stores import Site, azure_port, s3_port, site
from workers.agent import store_mark
from workers.artifacts import Soundness

__all__ = ["azure_port", "s3_port", "site"]

LARGE_BYTES = 3 << 20  #: above what is one object in these tests: twelve parts
PART_BYTES = object_stores.SMALL.part_bytes


def made(folder: Path, name: str, size_bytes: int = 1000) -> Path:
    path = folder / name
    path.write_bytes(random.Random(name).randbytes(size_bytes))
    return path


def largest(site: Site) -> str:
    """Of what lies in a store the name of the largest: of a file in parts, a part."""
    objects = site.objects()
    return max(objects, key=lambda name: objects[name])


def copy_of(file: Path) -> Path:
    """As a stage that ran again would leave it."""
    again = file.with_name(f"again-{file.name}")
    again.write_bytes(file.read_bytes())
    return again


sizes = pytest.mark.parametrize("size_bytes", [1000, LARGE_BYTES], ids=["small", "in-parts"])


@pytest.mark.parametrize("size_bytes", [0, 1000, LARGE_BYTES], ids=["empty", "small", "in-parts"])
def test_what_was_put_is_found_placed_read_and_got_by_another_machine(
    site: Site, tmp_path: Path, size_bytes: int
) -> None:
    file = made(tmp_path, "model.irpa", size_bytes)
    content = file.read_bytes()
    artifact = site.store().put(file, "irpa")
    assert artifact == Artifact("model.irpa", "irpa", hashlib.sha256(content).hexdigest(), size_bytes)
    there = site.store("another-cache")
    assert there.has(artifact) and there.has_all([artifact]) and there.verify(artifact)
    there.place(artifact, tmp_path / "inputs" / "export" / "model.irpa")
    assert (tmp_path / "inputs" / "export" / "model.irpa").read_bytes() == content
    with there.open(artifact) as opened:
        assert opened.read() == content
    there.get(artifact, tmp_path / "mine.irpa")
    assert (tmp_path / "mine.irpa").read_bytes() == content
    assert [(stored.sha256, stored.size_bytes) for stored in there.stored()] == [(artifact.sha256, size_bytes)]


def test_what_is_not_there_is_told_from_what_is(site: Site, tmp_path: Path) -> None:
    store = site.store()
    present = store.put(made(tmp_path, "here"), "log")
    gone = Artifact("model.mlir", "mlir", "0" * 64, 5)
    large = Artifact("model.irpa", "irpa", "1" * 64, LARGE_BYTES)
    assert store.missing([present, gone, large]) == {gone, large}
    assert store.check(gone) is Soundness.MISSING
    for artifact in (gone, large):
        with pytest.raises(ArtifactLost, match=f"{artifact.name} .* is missing in the artifact store"):
            store.place(artifact, tmp_path / "placed")
    assert not (tmp_path / "placed").exists()


@sizes
def test_a_flipped_bit_is_found_named_and_laid_aside_and_the_file_can_be_put_again(
    site: Site, tmp_path: Path, size_bytes: int
) -> None:
    file = made(tmp_path, "model.irpa", size_bytes)
    again = copy_of(file)
    artifact = site.store().put(file, "irpa")
    name = largest(site)
    content = bytearray(site.read(name))
    content[len(content) // 2] ^= 1
    site.corrupt(name, bytes(content))
    there = site.store("another-cache")
    with pytest.raises(ArtifactLost, match=r"model\.irpa .* is damaged: .*damaged/"):
        there.place(artifact, tmp_path / "placed")
    assert not there.has(artifact)
    assert bytes(content) in [site.read(name) for name in site.objects("damaged")]
    assert there.put(again, "irpa", "model.irpa") == artifact
    assert site.store("a-third-cache").verify(artifact)


@sizes
def test_a_truncated_file_is_found(site: Site, tmp_path: Path, size_bytes: int) -> None:
    artifact = site.store().put(made(tmp_path, "model.irpa", size_bytes), "irpa")
    name = largest(site)
    site.corrupt(name, site.read(name)[:-1])
    assert site.store("another-cache").check(artifact) is Soundness.DAMAGED
    assert not site.store().has(artifact)


def test_a_part_that_is_gone_is_sent_again_by_whoever_has_the_file(site: Site, tmp_path: Path) -> None:
    if site.is_folder:
        pytest.skip("a folder has no parts")
    file = made(tmp_path, "model.irpa", LARGE_BYTES)
    again = copy_of(file)
    artifact = site.store().put(file, "irpa")
    site.remove(next(iter(site.objects("parts"))))
    with pytest.raises(ArtifactLost, match="is missing"):
        site.store("another-cache").place(artifact, tmp_path / "placed")
    site.store().put(again, "irpa")
    assert site.store("another-cache").verify(artifact)


def test_writers_of_one_file_do_no_harm_to_each_other(site: Site, tmp_path: Path) -> None:
    content = made(tmp_path, "model.irpa", LARGE_BYTES).read_bytes()
    files = [tmp_path / f"{number}.irpa" for number in range(4)]
    for file in files:
        file.write_bytes(content)
    stores = [site.store(f"cache-{number}") for number in range(len(files))]
    artifacts: list[Artifact] = []
    threads = [
        threading.Thread(target=lambda store=store, file=file: artifacts.append(store.put(file, "irpa", "model.irpa")))
        for store, file in zip(stores, files, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(artifacts) == len(files)
    assert len(set(artifacts)) == 1
    assert site.store("another-cache").verify(artifacts[0])


def test_a_store_that_is_gone_is_not_a_store_without_files(site: Site, tmp_path: Path) -> None:
    store = site.store()
    artifact = store.put(made(tmp_path, "model.mlir"), "mlir")
    site.remove("", recursive=True)
    with pytest.raises(StorageUnusable, match=f"artifact store {site.url}: it is gone"):
        store.has(artifact)
    with pytest.raises(StorageUnusable, match="it is gone"):
        store.put(made(tmp_path, "another.mlir"), "mlir")


def test_a_store_has_one_mark_that_no_other_has(site: Site) -> None:
    assert store_mark.read(site.url) is None
    mark = store_mark.make(site.url)
    assert mark
    assert store_mark.make(site.url) == store_mark.read(site.url) == mark


def test_what_is_linked_can_be_opened(site: Site, tmp_path: Path) -> None:
    artifact = site.store().put(made(tmp_path, "model.mlir"), "mlir")
    (link,) = site.store().links(artifact)
    assert artifact.sha256 in link
