"""The day as an operator reads it: attempts with times, the story of a failure, events of jobs and nodes."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from db.connection.engine import open_database
from db.store import Store
from jobs.state import Failure, FailureKind
from tests.integration.commands.in_process import Answer, Command, answer, haloctl
from tests.stored_jobs import BROKEN, NOON, finish, give_back, result_of, start, submit, succeed

__all__ = ["answer", "haloctl"]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def task(haloctl: Command, tmp_path: Path) -> str:
    """An export whose first attempt was lost with its node, and whose second one failed."""
    seconds = iter(range(0, 10_000, 10))
    with open_database(f"sqlite:///{tmp_path}/data/haloctl.db", create=True) as database:
        store = Store(database, lambda: NOON + timedelta(seconds=next(seconds)))
        succeed(store, f"{submit(store)}-01")
        task = f"{submit(store)}-01"
        give_back(store, start(store, task).id, Failure(FailureKind.NODE_LOST, "node a is gone"))
        finish(store, result_of(start(store, task), BROKEN))
    return task


def rows(answer: Answer, *command: str) -> Any:
    return json.loads(answer(*command, "--json"))


def test_why_tells_the_story_of_a_failure(answer: Answer, task: str) -> None:
    lines = answer("why", task).splitlines()
    assert lines[1] == "failed: tool_failed: model.mlir:7:3: error: no"
    assert lines[2].startswith(f"  attempt {task}-1 on a, 2025-11-21 12:0")
    assert lines[2].endswith("node_lost: node a is gone")
    assert lines[3].startswith(f"  attempt {task}-2 on a, 2025-11-21 12:0")
    assert lines[4] == "  not tried again, because tool_failed would happen again"
    assert lines[5] == f"  find the cause in its log: `haloctl logs {task}-2`, then `haloctl retry {task[:8]}`"
    attempts = rows(answer, "why", task)["attempts"]
    assert [attempt["failure_kind"] for attempt in attempts] == ["node_lost", "tool_failed"]


def test_attempts_are_shown_with_their_times(answer: Answer, task: str) -> None:
    shown = answer("show", task)
    assert "  2025-11-21 12:0" in shown
    assert " to 12:0" in shown


def test_events_name_what_was_lost_and_why(answer: Answer, task: str) -> None:
    events = rows(answer, "events", "--job", task[:8])
    changes = [event["change"] for event in events if event["task"] == task]
    assert changes[-4:] == ["queued -> running", "running -> queued", "queued -> running", "running -> failed"]
    lost = next(event for event in events if event["failure_kind"] == "node_lost")
    assert (lost["node"], lost["attempt"], lost["failure_message"]) == ("a", f"{task}-1", "node a is gone")
    assert events[0]["change"] == "submitted"
    assert {event["job"] for event in events} == {task[:8]}
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert len(rows(answer, "events", "--limit", "3")) == 3
    assert rows(answer, "events", "--limit", "3") == rows(answer, "events", "--limit", "0")[-3:]
    assert "node_lost: node a is gone" in answer("events", "--since", "2025-11-21")
    assert rows(answer, "events", "--since", "2025-11-22") == []


def test_events_of_a_node_are_its_attempts_and_what_was_done_to_it(answer: Answer, task: str, tmp_path: Path) -> None:
    name = rows(answer, "nodes")[0]["id"]
    answer("nodes", "quarantine", name, "--why", "fan")
    for command in (("events", "--node", name), ("nodes", "--history"), ("events",)):
        last = rows(answer, *command)[-1]
        assert (last["change"], last["subject"], last["detail"]) == ("quarantine", name, "fan")
    assert {event["node"] for event in rows(answer, "events", "--node", "a")} == {"a"}
    assert rows(answer, "events", "--node", "other") == []
    history = rows(answer, "nodes", "--history")
    assert [(event["task"], event["change"]) for event in history] == [
        (task, "running -> queued"),
        (None, "up"),
        (None, "quarantine"),
    ]
    assert "node_lost: node a is gone" in answer("nodes", "--history")
