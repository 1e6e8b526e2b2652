"""`haloctl artifacts`, on a store with the files of one job and a file that a user added."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from db.connection.engine import open_database
from db.store import Store
from jobs.task import Artifact
from tests.acceptance.haloctl import Haloctl, opened
from tests.stored_jobs import finish, result_of, start, submit
from workers.artifacts import ArtifactStore

HOURS_3 = 3 * 3600


@dataclass(frozen=True)
class World:
    """A haloctl with one exported file of a job, and a file that belongs to no job."""

    haloctl: Haloctl
    job: str
    made: Artifact
    orphan: Artifact

    def path(self, artifact: Artifact) -> Path:
        return self.haloctl.data / "artifacts" / "sha256" / artifact.sha256[:2] / artifact.sha256


@pytest.fixture
def world(tmp_path: Path, temporary: Path) -> Iterator[World]:
    with opened(tmp_path / "world", temporary) as haloctl:
        haloctl.data.mkdir()
        store = ArtifactStore(haloctl.data / "artifacts")
        made, orphan = (store.put(written(tmp_path / name), "irpa") for name in ("model.irpa", "orphan.irpa"))
        with open_database(f"sqlite:///{haloctl.data}/haloctl.db", create=True) as database:
            job = submit(Store(database), stages=["export"])
            attempt = start(Store(database), f"{job}-01")
            finish(Store(database), replace(result_of(attempt, measurements=()), artifacts=(made,)))
        stored = World(haloctl, job, made, orphan)
        for artifact in (made, orphan):
            age(stored, artifact)
        yield stored


def written(path: Path) -> Path:
    path.write_text(f"what is in {path.name}\n")
    return path


def age(world: World, artifact: Artifact) -> None:
    """It was published three hours ago."""
    for file in (world.path(artifact), world.haloctl.data / "artifacts" / "used" / artifact.sha256):
        at = file.stat().st_mtime - HOURS_3
        os.utime(file, (at, at))


def test_files_are_listed_shown_linked_and_fetched(world: World) -> None:
    haloctl, job, made = world.haloctl, world.job, world.made
    for arguments in ([], ["list"], [job], ["list", job], ["--kind", "irpa"]):
        assert [row["sha256"] for row in haloctl.json("artifacts", *arguments)] == [made.sha256]
    shown = haloctl.json("artifacts", "show", f"{job}-01/model.irpa")
    assert (shown["is_there"], shown["address"]) == (True, str(world.path(made)))
    assert [maker["task"] for maker in shown["made_by"]] == [f"{job}-01"]
    assert f"made by {job}-01-1: export" in haloctl.answer("artifacts", "show", made.sha256[:8])
    assert haloctl.answer("artifacts", "link", made.sha256) == f"{world.path(made)}\n"
    haloctl.answer("artifacts", "get", made.sha256[:8], "-o", "mine.irpa")
    assert (haloctl.folder / "mine.irpa").read_bytes() == world.path(made).read_bytes()
    again = haloctl.run("artifacts", "get", made.sha256[:8], "-o", "mine.irpa")
    assert (again.code, again.out) == (2, "")
    haloctl.answer("artifacts", "get", world.orphan.sha256)
    assert haloctl.run("artifacts", "show", "0" * 64).code == 4
    assert haloctl.run("artifacts", "get", f"{job}-01/no-such").code == 4


def test_what_is_brought_by_hand_stays_until_it_is_let_go_of(world: World) -> None:
    haloctl = world.haloctl
    file = written(haloctl.folder / "hand.irpa")
    sha256 = haloctl.answer("artifacts", "put", "hand.irpa", "--why", "a trial").strip()
    assert file.stat().st_mode & 0o200, "the file stays its owner's"
    assert file.stat().st_nlink == 1
    brought = Artifact("hand.irpa", "irpa", sha256, file.stat().st_size)
    age(world, brought)
    (pin,) = haloctl.json("artifacts", "show", sha256)["pins"]
    assert pin["why"] == "a trial (hand.irpa)"
    removed = haloctl.json("artifacts", "gc")["removed"]
    assert [row["sha256"] for row in removed] == [world.orphan.sha256]
    haloctl.answer("artifacts", "unpin", sha256)
    assert haloctl.run("artifacts", "unpin", sha256).code == 5
    dry_run = haloctl.json("artifacts", "gc", "--dry-run")
    assert (dry_run["freed_bytes"], world.path(brought).exists()) == (brought.size_bytes, True)
    assert haloctl.json("artifacts", "gc")["freed_bytes"] == brought.size_bytes
    assert not world.path(brought).exists()
    assert world.path(world.made).exists()


def test_a_pinned_file_outlives_its_jobs(world: World) -> None:
    haloctl = world.haloctl
    haloctl.answer("artifacts", "pin", world.orphan.sha256[:12], "--why", "we publish it")
    assert haloctl.json("artifacts", "gc", "--older-than", "0m")["removed"] == []
    assert world.path(world.orphan).exists()


def test_damaged_and_missing_files_are_named(world: World) -> None:
    haloctl, path = world.haloctl, world.path(world.made)
    assert haloctl.run("artifacts", "verify", "--all").code == 0
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + b"!")
    done = haloctl.run("artifacts", "verify", world.job)
    assert (done.code, done.out) == (3, f"damaged  model.irpa  {world.made.sha256}\n")
    assert "1 of 1" in done.err
    assert [file.read_bytes() for file in (haloctl.data / "artifacts" / "damaged").iterdir()] == [content[:-1] + b"!"]
    done = haloctl.run("artifacts", "verify", "--all", "--json")
    assert done.code == 3
    assert '"missing"' in done.out and '"sound"' in done.out
    assert haloctl.run("artifacts", "verify").code == 2


def test_a_store_that_cannot_be_had_is_one_message(world: World) -> None:
    (world.haloctl.data / "artifacts").rename(world.haloctl.data / "away")
    (world.haloctl.data / "artifacts").touch()
    done = world.haloctl.run("artifacts", "show", world.made.sha256)
    assert (done.code, len(done.err.splitlines())) == (6, 1)
    assert "artifact store" in done.err


def test_a_secret_in_the_stores_url_is_refused_and_not_repeated(world: World) -> None:
    with_secret = world.haloctl.but_with(HALOCTL_ARTIFACTS="s3://key:hush@bucket/x")
    done = with_secret.run("artifacts")
    assert done.code == 2
    assert "HALOCTL_ARTIFACTS" in done.err
    assert "hush" not in done.err


#: Runs at the start of each Python process that finds it: its clock is two hours ahead of the store's.
TWO_HOURS_AHEAD = """
import datetime, time
AHEAD_S, real, real_time = 7200, datetime.datetime, time.time
class Meta(type):
    def __instancecheck__(cls, other):
        return isinstance(other, real)
class Ahead(real, metaclass=Meta):
    @classmethod
    def now(cls, tz=None):
        return real.now(tz) + datetime.timedelta(seconds=AHEAD_S)
datetime.datetime, time.time = Ahead, lambda: real_time() + AHEAD_S
"""


def test_a_collector_goes_by_the_clock_of_the_store(world: World) -> None:
    haloctl = world.haloctl
    (haloctl.folder / "sitecustomize.py").write_text(TWO_HOURS_AHEAD)
    ahead = haloctl.but_with(PYTHONPATH=f"{haloctl.folder}:{haloctl.environment['PYTHONPATH']}")
    young = ArtifactStore(haloctl.data / "artifacts").put(written(haloctl.folder / "young.irpa"), "irpa")
    assert [row["sha256"] for row in ahead.json("artifacts", "gc")["removed"]] == [world.orphan.sha256]
    assert world.path(young).exists()


def test_one_collector_runs_at_a_time(world: World) -> None:
    url = f"sqlite:///{world.haloctl.data}/haloctl.db"
    with open_database(url, create=False) as database, database.collector_lock() as lock:
        assert lock.try_acquire()
        done = world.haloctl.run("artifacts", "gc")
    assert (done.code, done.out) == (5, "")
    assert "wait until it has ended" in done.err
    assert world.path(world.orphan).exists()
