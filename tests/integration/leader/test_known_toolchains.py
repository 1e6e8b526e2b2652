"""The known toolchains, merged from rows, the database and this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from db.connection.engine import open_database
from jobs.errors import NothingToDo, UnknownToolchain
from jobs.task import Node
from jobs.toolchain_table import TOOLCHAINS
from orchestrator.context import Context
from orchestrator.settings import Settings
from orchestrator.toolchains.known_toolchains import Toolchains
from orchestrator.views import toolchain_rows
from tests import databases, toolchain_wheels

SITE = "teapot:\n  packages: [teapot]\n  over: no\n  stages: [compile]\n"


@pytest.fixture
def world(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    for version in ("1.0", "2.0"):
        toolchain_wheels.wheel(tmp_path / "wheels", "teapot", version)
    for name, value in toolchain_wheels.variables(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    site = tmp_path / "toolchains.yaml"
    site.write_text(SITE)
    with databases.sqlite_file(sqlite_template, tmp_path) as url, open_database(url, create=False) as database:
        yield Context(Settings(tmp_path, url, None, tmp_path, site), database)


def test_a_row_that_was_changed_is_resolved_anew_when_it_is_next_needed(world: Context) -> None:
    first = Toolchains(world).current("teapot")
    assert first.lines[0].startswith("teapot==2.0")
    assert Toolchains(world).current("teapot") == first
    file = world.settings.toolchains
    assert file
    file.write_text(SITE.replace("[teapot]", "[teapot<2]"))
    assert Toolchains(world).find("teapot").is_stale
    assert Toolchains(world).current("teapot").lines[0].startswith("teapot==1.0")
    assert not Toolchains(world).find("teapot").is_stale


def test_a_build_is_known_here_and_on_nodes(world: Context) -> None:
    lock = Toolchains(world).current("teapot")
    toolchain = Toolchains(world).build(lock)
    nodes = {"a": "", "b": "the disk is full"}
    world.store.record_nodes([Node(name, "", 1, 1, (), toolchains={lock.digest: why}) for name, why in nodes.items()])
    known = Toolchains(world).find("teapot")
    assert known.environment
    assert known.environment.toolchain == toolchain
    name, packages, stages, digest, _, size, _, where = toolchain_rows.build_table([known]).rows[0]
    assert (name, packages, stages, lock.digest.startswith(digest)) == ("teapot", "teapot 2.0", "compile", True)
    assert (bool(size), where) == (True, "a, b: the disk is full")
    facts = dict(toolchain_rows.describe(known))
    assert str(known.environment.folder) in facts["here"]
    assert toolchain_rows.list_pins(known) == ["teapot==2.0"]


def test_the_default_is_neither_resolved_nor_built(world: Context) -> None:
    known = Toolchains(world)
    with pytest.raises(NothingToDo):
        known.current("default")
    with pytest.raises(UnknownToolchain):
        known.current("kettle")
    assert "torch" in known.find("default").versions


def test_a_family_is_listed_from_when_it_was_resolved(world: Context, tmp_path: Path) -> None:
    assert [toolchain.name for toolchain in Toolchains(world).all()] == [*TOOLCHAINS, "teapot"]
    toolchain_wheels.iree(tmp_path / "wheels", "9.1.0")
    Toolchains(world).update("iree-9.1")
    assert [toolchain.name for toolchain in Toolchains(world).all()] == [*TOOLCHAINS, "teapot", "iree-9.1"]


def test_a_site_that_takes_a_row_back_has_it_no_more(world: Context) -> None:
    Toolchains(world).update("teapot")
    file = world.settings.toolchains
    assert file
    file.write_text("")
    assert [toolchain.name for toolchain in Toolchains(world).all()] == list(TOOLCHAINS)
