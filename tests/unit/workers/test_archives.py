"""Archives of what a compiler left beside outputs/."""

import tarfile
from pathlib import Path

import pytest

from jobs.stages.base import Archive
from workers.attempts.archives import pack

ARCHIVE = Archive("dump", ("*.stream.mlir", "configured_*.mlir"), "dump", 1 << 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An attempt's folder with what a compiler, and somebody else, left in it."""
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump/configured_a.mlir").write_text("a")
    (tmp_path / "dump/model.7.stream.mlir").write_text("schedule")
    (tmp_path / "dump/model.12.vm.mlir").write_text("not kept")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "dump/configured_b.mlir").symlink_to(tmp_path / "secret")
    return tmp_path


def test_equal_files_make_equal_archives_without_what_links_name(folder: Path) -> None:
    assert [pack(folder, ARCHIVE, folder / name) for name in ("1.tar.gz", "2.tar.gz")] == [None, None]
    assert (folder / "1.tar.gz").read_bytes() == (folder / "2.tar.gz").read_bytes()
    with tarfile.open(folder / "1.tar.gz") as packed:
        assert packed.getnames() == ["configured_a.mlir", "model.7.stream.mlir"]


def test_what_is_too_large_or_missing_is_not_kept(folder: Path) -> None:
    target = folder / "dump.tar.gz"
    assert pack(folder, Archive("dump", ("*",), "dump", 5), target) == "its files have more than 0 MiB"
    assert not target.exists()
    assert pack(folder, Archive("other", ("*",), "dump", 5), target) == "there is no folder other"


def test_a_link_in_place_of_the_folder_is_not_followed(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "dump")
    assert pack(folder, Archive("link", ("*",), "dump", 1 << 20), folder / "a.tar.gz") == "there is no folder link"
