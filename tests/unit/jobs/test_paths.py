"""Names that become parts of paths."""

from pathlib import Path

import pytest

from jobs.errors import UnsafePath
from jobs.paths import path_below, path_part


@pytest.mark.parametrize("name", ["model.rank0.irpa", "log", "0a1b-01-1", "a+b@2=c,d", "größe.json", "_x", "a..b"])
def test_usual_names_are_parts_of_paths(name: str) -> None:
    assert path_part(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../a", "a/b", "/etc/passwd", "a\\b", ".bashrc", "-rf", "~root", "a b", "a\n", "a\0", "$(id)",
        "`id`", "'", '"', "*", "a\u202eb", "\u3164", "a" * 201, "ß" * 101, None, 5, ["a"],
    ],
)  # fmt: skip
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(UnsafePath):
        path_part(name)


def test_a_path_stays_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("/etc")
    (tmp_path / "real" / "dangling").symlink_to("/nowhere")
    assert path_below(tmp_path, "real", "new.txt") == tmp_path / "real" / "new.txt"
    for parts in (("..", "a"), ("real", "../../a"), ("linked", "passwd"), ("real", "dangling")):
        with pytest.raises(UnsafePath):
            path_below(tmp_path, *parts)
