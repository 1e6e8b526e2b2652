"""What leaves the artifact store, and what never does."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from db.connection.engine import Database
from db.reads import artifact_refs
from db.reads.artifact_refs import ReferencedFiles
from db.store import Store
from db.writes import pins
from jobs.errors import AmbiguousId, NotFound
from jobs.task import Artifact
from orchestrator.artifacts.collection import CollectionResult, collect, unreferenced
from tests.integration.object_stores import Site, azure_port, s3_port, site
from tests.stored_jobs import finish, result_of, start, submit
from workers.artifacts import ArtifactStore, Stored

__all__ = ["azure_port", "s3_port", "site"]

NOW = datetime.now(UTC)
NOTHING = ReferencedFiles(frozenset(), None)
YEAR = timedelta(days=365)


def kept(*digests: str, running_since: datetime | None = None) -> ReferencedFiles:
    return ReferencedFiles(frozenset(digests), running_since)


def stored(sha256: str, age: timedelta) -> Stored:
    return Stored(sha256, 10, NOW - age)


def test_what_nothing_points_to_goes_when_it_is_older_than_an_hour_and_than_what_runs() -> None:
    files = [stored("a", timedelta(minutes=59)), stored("b", timedelta(hours=2)), stored("c", timedelta(days=9))]
    assert [stored.sha256 for stored in unreferenced(files, NOTHING, NOW)] == ["b", "c"]
    assert [stored.sha256 for stored in unreferenced(files, kept("c"), NOW)] == ["b"]
    assert [stored.sha256 for stored in unreferenced(files, kept(running_since=NOW - timedelta(hours=3)), NOW)] == ["c"]


def file_of(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(name.encode() * 100)
    return path


@pytest.fixture
def clock() -> list[datetime]:
    """The time, to be set."""
    return [NOW]


@pytest.fixture
def timed(database: Database, clock: list[datetime]) -> Store:
    return Store(database, lambda: clock[0])


def artifact(name: str) -> Artifact:
    return Artifact(name, "log", name[0] * 64, 5)


EXPORTED, PINNED = artifact("e"), artifact("9")
INPUT = "3" * 64  #: of every attempt in tests.stored_jobs


def one_job(store: Store) -> str:
    return submit(store, stages=["export", "compile"])


def test_everything_that_a_job_made_is_pointed_to(database: Database, timed: Store) -> None:
    job = one_job(timed)
    finish(timed, replace(result_of(start(timed, f"{job}-01"), measurements=()), artifacts=(EXPORTED,)))
    assert artifact_refs.referenced(database).digests == {EXPORTED.sha256}


def test_what_a_running_attempt_reads_is_pointed_to_by_nobody_else(
    database: Database, timed: Store, clock: list[datetime]
) -> None:
    job = one_job(timed)
    start(timed, f"{job}-01")
    references = artifact_refs.referenced(database, NOW + YEAR)
    assert references.digests == {INPUT}
    assert references.running_since == clock[0]


def test_of_jobs_that_ended_long_ago_the_newest_result_of_each_variant_and_pins_stay(
    database: Database, timed: Store, clock: list[datetime]
) -> None:
    for name in ("a", "b"):
        clock[0] = NOW - YEAR + timedelta(days=ord(name))
        job = one_job(timed)
        for number, file in (("01", f"{name}1"), ("02", f"{name}2")):
            made = (replace(EXPORTED, sha256=file * 32, name=file),)
            finish(timed, replace(result_of(start(timed, f"{job}-{number}"), measurements=()), artifacts=made))
    pins.pin(database, PINNED.sha256, "the release", "ada")
    every = {"a1" * 32, "a2" * 32, "b1" * 32, "b2" * 32, PINNED.sha256}
    assert artifact_refs.referenced(database).digests == every
    assert artifact_refs.referenced(database, NOW - YEAR).digests == every | {INPUT}, "no job ended before"
    newest = {"b1" * 32, "b2" * 32, PINNED.sha256, INPUT}
    assert artifact_refs.referenced(database, NOW).digests == newest
    clock[0] = NOW + timedelta(days=1)
    one_job(timed)  # an open job with nothing yet
    assert artifact_refs.referenced(database, NOW).digests == newest


def test_files_are_found_by_the_start_of_their_digest_and_by_task_and_name(database: Database, timed: Store) -> None:
    job = one_job(timed)
    first, second = replace(EXPORTED, sha256="ab" * 32, name="one"), replace(EXPORTED, sha256="ac" * 32, name="other")
    finish(timed, replace(result_of(start(timed, f"{job}-01"), measurements=()), artifacts=(first, second)))
    assert artifact_refs.find_artifact(database, "ABAB") == first
    assert artifact_refs.find_artifact(database, f"{job}-01/other") == second
    with pytest.raises(AmbiguousId):
        artifact_refs.find_artifact(database, "a")
    for name in ("", "ad", f"{job}-01/another", f"{job}-02/one"):
        with pytest.raises(NotFound):
            artifact_refs.find_artifact(database, name)
    (maker,) = artifact_refs.producers(database, first.sha256)
    assert (maker.task, maker.stage, maker.name) == (f"{job}-01", "export", "one")
    assert artifact_refs.consumers(database, first.sha256) == []
    start(timed, f"{job}-02")
    assert [(user.task, user.how) for user in artifact_refs.consumers(database, INPUT)] == [
        (f"{job}-01", "input"),
        (f"{job}-02", "input"),
    ]


def in_two_hours(
    store: ArtifactStore, read_kept: Callable[[], ReferencedFiles], *, is_dry: bool = False
) -> CollectionResult:
    return collect(store, read_kept, datetime.now(UTC) + timedelta(hours=2), is_dry=is_dry)


def test_what_nothing_points_to_is_removed_and_nothing_else(site: Site, tmp_path: Path) -> None:
    store = site.store()
    wanted, unwanted = (store.put(file_of(tmp_path, name), "log") for name in ("wanted", "unwanted"))
    assert collect(store, lambda: NOTHING, datetime.now(UTC)).removed == (), "both are young"
    keep = kept(wanted.sha256)
    collected = in_two_hours(store, lambda: keep, is_dry=True)
    assert store.missing([wanted, unwanted]) == set()
    assert collected == in_two_hours(store, lambda: keep)
    assert [(stored.sha256, stored.size_bytes) for stored in collected.removed] == [
        (unwanted.sha256, unwanted.size_bytes)
    ]
    assert store.missing([wanted, unwanted]) == {unwanted}


def test_parts_of_what_was_never_finished_go_after_a_day_and_those_of_files_stay(site: Site, tmp_path: Path) -> None:
    if site.is_folder:
        (tmp_path / "artifacts" / "sha256").mkdir(parents=True)
        (tmp_path / "artifacts" / "incoming").mkdir()
        (tmp_path / "artifacts" / "incoming" / ("0" * 64)).write_bytes(bytes(1000))
        abandoned_bytes, store = 1000, site.store()
        large = store.put(file_of(tmp_path, "large"), "irpa")
    else:
        store = site.store()
        path = tmp_path / "large.irpa"
        path.write_bytes(os.urandom(3 << 20))
        large = store.put(path, "irpa")
        path = tmp_path / "half.irpa"
        path.write_bytes(os.urandom(2 << 20))
        half = store.put(path, "irpa")
        site.remove(next(name for name in site.objects() if name.endswith(f"{half.sha256}.parts")))
        abandoned_bytes = 2 << 20
    tomorrow = datetime.now(UTC) + timedelta(days=2)
    assert collect(store, lambda: kept(large.sha256), datetime.now(UTC)).abandoned_bytes == 0
    assert collect(store, lambda: kept(large.sha256), tomorrow).abandoned_bytes == abandoned_bytes
    assert site.store("another-cache").verify(large)


def test_what_is_published_again_while_it_is_removed_is_there_afterwards(site: Site, tmp_path: Path) -> None:
    store = site.store()
    file = store.put(file_of(tmp_path, "file"), "log")
    again = file_of(tmp_path / "..", tmp_path.name + "-again")
    again.write_bytes(b"file" * 100)
    publishing = threading.Thread(target=lambda: site.store("another-cache").put(again, "log"))

    def read_kept() -> ReferencedFiles:
        """Read once before anything is doomed, and once when it is: somebody publishes just then."""
        if store_is_doomed(site, file):
            publishing.start()
        return NOTHING

    assert [stored.sha256 for stored in in_two_hours(store, read_kept).removed] == [file.sha256]
    publishing.join()
    assert site.store("a-third-cache").verify(file)


def store_is_doomed(site: Site, file: Artifact) -> bool:
    return f"doomed/{file.sha256}" in site.objects()
