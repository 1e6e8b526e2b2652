"""The cost of surviving a power cut: publishing with and without waiting for the disk, and commits to SQLite.

A virtual disk may answer a sync at once; the number of syncs tells what a slower one adds.
"""

import os
import statistics
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from db.connection.engine import open_database
from jobs.task import Artifact
from workers.artifacts.folder import FolderBackend
from workers.artifacts.verification_cache import VerificationCache
from workers.durability import Disk

pytestmark = pytest.mark.benchmark

ROUNDS = 51


class CountingDisk(Disk):
    """Counts syncs, and skips them unless they are wanted."""

    def __init__(self, *, syncs: bool) -> None:
        self.count, self._syncs = 0, syncs

    def sync_file(self, file: Path) -> None:
        self.count += 1
        if self._syncs:
            super().sync_file(file)

    def sync_folder(self, folder: Path) -> None:
        self.count += 1
        if self._syncs:
            super().sync_folder(folder)


def median_ms(action: Callable[[], object], rounds: int = ROUNDS) -> float:
    times_s = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times_s.append(time.perf_counter() - began)
    return statistics.median(times_s) * 1e3


@pytest.mark.parametrize(("size_bytes", "rounds"), [(4096, ROUNDS), (64 << 20, 5)])
def test_publishing(tmp_path: Path, size_bytes: int, rounds: int) -> None:
    costs_ms, syncs = {}, 0
    for is_synced in (False, True):
        disk = CountingDisk(syncs=is_synced)
        backend = FolderBackend(tmp_path / f"store-{is_synced}", VerificationCache(None), disk=disk)

        def publish(backend: FolderBackend = backend) -> None:
            content = os.urandom(size_bytes)
            file = tmp_path / "file"
            file.unlink(missing_ok=True)
            file.write_bytes(content)
            backend.publish(file, Artifact("f", "log", sha256(content).hexdigest(), size_bytes), may_link=True)

        before = disk.count
        costs_ms[is_synced] = median_ms(publish, rounds)
        syncs = round((disk.count - before) / rounds)
    with_syncs, without = costs_ms[True], costs_ms[False]
    print(f"\nwrite and publish {size_bytes} bytes: {with_syncs:.2f} ms, {without:.2f} ms without {syncs} syncs")


def test_commits(tmp_path: Path) -> None:
    costs_ms = {}
    with open_database(f"sqlite:///{tmp_path}/halo.db", create=True) as database:
        for survives in (False, True):

            def commit(survives: bool = survives) -> None:
                with database.writing(survives_power_cut=survives) as connection:
                    connection.exec_driver_sql("INSERT INTO reports (at, made_by) VALUES ('2026-01-01', 'bench')")

            costs_ms[survives] = median_ms(commit, 10 * ROUNDS)
    print(f"\ncommit to SQLite: {costs_ms[True]:.3f} ms, {costs_ms[False]:.3f} ms without 1 sync")


def test_a_sync(tmp_path: Path) -> None:
    file = tmp_path / "file"

    def sync() -> None:
        with file.open("ab") as stream:
            stream.write(bytes(4096))
        Disk().sync_file(file)

    print(f"\nsync of 4 KiB on {tmp_path}: {median_ms(sync):.3f} ms")
