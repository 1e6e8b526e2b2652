"""What runs cost, as `haloctl usage` sums it up."""

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from db.connection.engine import open_database
from db.store import Store
from jobs.state import Failure, FailureKind
from jobs.task import Attempt, Device, Place, TaskResult
from tests.integration.commands.in_process import Answer, Command, answer, haloctl
from tests.stored_jobs import LOST, attempt_of, begun, finish, give_back, open_task, result_of, submit

__all__ = ["answer", "haloctl"]

GPUS = tuple(Device("mi300x", index, f"g{index}") for index in range(8))


class Clock:
    """The time of the store."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def place(store: Store, task: str, *places: Place) -> Attempt:
    store.queue([task])
    attempt = replace(attempt_of(open_task(store, task)), places=places)
    store.start([begun(attempt)])
    return attempt


@pytest.fixture
def filled(haloctl: Command, tmp_path: Path) -> str:
    """Ada's export took 100 s of 8 GPUs, after 40 s that were lost with their node; Bob's gang failed, and runs again.

    Returns Ada's job.
    """
    clock = Clock(datetime.now(UTC) - timedelta(days=2))
    with open_database(f"sqlite:///{tmp_path}/data/haloctl.db", create=True) as database:
        store = Store(database, clock)
        ada, bob = submit(store, submitted_by="ada"), submit(store, submitted_by="bob")
        attempt = place(store, f"{ada}-01", Place("a", GPUS))
        clock.now += timedelta(seconds=40)
        give_back(store, attempt.id, LOST)
        attempt = place(store, f"{ada}-01", Place("a", GPUS))
        clock.now += timedelta(seconds=110)  # 10 s of which are the head's
        finish(store, replace(result_of(attempt), duration_s=100.0))
        gang = (Place("a", GPUS[:2]), Place("b", (Device("cpu", 0),)))
        attempt = place(store, f"{bob}-01", *gang)
        clock.now += timedelta(seconds=10)
        finish(store, TaskResult(attempt.id, attempt.epoch, Failure(FailureKind.OUT_OF_MEMORY, "no room")))
        clock.now = datetime.now(UTC) - timedelta(seconds=20)
        store.retry(bob)
        place(store, f"{bob}-01", *gang)
    return ada


def rows(answer: Answer, *arguments: str) -> Any:
    return json.loads(answer("usage", *arguments, "--json"))


def test_lost_and_failed_device_seconds_are_told_apart(answer: Answer, filled: str) -> None:
    ada, bob = rows(answer)
    assert (ada["user"], ada["attempts"], ada["device_s"], ada["gpu_s"]) == ("ada", 2, 1120.0, 1120.0)
    assert (ada["succeeded_device_s"], ada["lost_device_s"], ada["failed_device_s"]) == (800.0, 320.0, 0.0)
    assert (bob["user"], bob["failed_device_s"], bob["failed_gpu_s"]) == ("bob", 30.0, 20.0)
    assert bob["running_attempts"] == 1
    assert bob["running_device_s"] == pytest.approx(60.0, abs=15.0)
    assert ada["core_s"] == pytest.approx(ada["device_s"] / 8)  # an export takes a core


def test_a_gang_counts_on_each_of_its_nodes(answer: Answer, filled: str) -> None:
    by_node = {row["node"]: row for row in rows(answer, "--by", "node")}
    assert (by_node["a"]["failed_device_s"], by_node["b"]["failed_device_s"]) == (20.0, 10.0)
    assert by_node["b"]["gpu_s"] == 0
    assert [row["attempts"] for row in rows(answer, "--by", "stage,model")] == [4]
    assert {row["job"] for row in rows(answer, "--by", "job")} >= {filled}


def test_only_the_time_of_the_period_counts(answer: Answer, filled: str) -> None:
    (bob,) = rows(answer, "--since", "1d")
    assert (bob["user"], bob["attempts"], bob["failed_attempts"]) == ("bob", 1, 0)


def test_people_and_spreadsheets_get_the_same(answer: Answer, filled: str) -> None:
    table = answer("usage")
    assert "ada" in table
    assert "in all:" in table
    read = csv.DictReader(io.StringIO(answer("usage", "--csv")))
    assert [float(row["lost_device_s"]) for row in read] == [320.0, 0.0]
    assert "choose from user, model, stage, node, job" in answer("usage", "--by", "planet", code=2)
