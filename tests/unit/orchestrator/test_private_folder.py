"""Ray's folders lie where only their user can enter, however long the path of the data folder is."""

import os
from pathlib import Path

import pytest

from jobs.errors import StorageUnusable
from orchestrator.ray_cluster.private_folder import (
    LONGEST_FOLDER,
    ensure_private,
    new_ray_folder,
    ray_folder,
    temporary_parent,
)
from tests.other_users import NOBODY, can_enter, needs_root


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o7777


def test_a_missing_folder_is_made_private(tmp_path: Path) -> None:
    assert mode(ensure_private(tmp_path / "data" / "ray")) == 0o700


def test_a_folder_that_others_could_only_read_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir(mode=0o755)
    assert mode(ensure_private(tmp_path / "ray")) == 0o700


@pytest.mark.parametrize("loose", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_could_write_to_is_refused(tmp_path: Path, loose: int) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray").chmod(loose)
    with pytest.raises(StorageUnusable, match=r"other users could write to it; .* chmod 700"):
        ensure_private(tmp_path / "ray")


def test_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(StorageUnusable, match="it is a link or a file"):
            ensure_private(tmp_path / name)


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir(mode=0o700)
    os.chown(tmp_path / "ray", NOBODY, NOBODY)
    with pytest.raises(StorageUnusable, match="another user owns it; set TMPDIR"):
        ensure_private(tmp_path / "ray")


def test_paths_leave_room_for_sockets_whatever_the_data_folders_is(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    folder = ray_folder(long, "head")
    assert len(os.fsencode(folder)) <= LONGEST_FOLDER
    assert folder.parent == temporary_parent()
    assert folder == ray_folder(long, "head") != ray_folder(long, "node")
    folder.rmdir()
    ray_folder(long, "node").rmdir()


@pytest.mark.parametrize("temporary", ["/tmp", f"/tmp/{'x' * 60}"])
def test_a_long_tmpdir_is_not_used(temporary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", temporary)
    assert temporary_parent() == Path(f"/tmp/haloctl-{os.geteuid()}")


@needs_root
def test_another_user_cannot_enter_what_ray_opened_to_everybody(tmp_path: Path) -> None:
    folders = [new_ray_folder(), ray_folder(tmp_path / ("x" * 100), "head")]
    for folder in folders:
        folder.chmod(0o777)  # as Ray does
        assert not can_enter(folder)
        folder.rmdir()
