"""Logs, artifacts and changes: in ranges, as they grow, and for many readers."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jobs.state import TaskState
from jobs.task import LogChunk
from tests import databases
from tests.integration.web.servers import WebServer, running
from tests.stored_jobs import NUMBERS, bring, finish, result_of, start, submit
from workers.artifacts import ArtifactStore
from workers.attempts.folders import log_path

DEADLINE_S = 30.0


@pytest.fixture
def attempt(fresh: WebServer) -> str:
    """An attempt that runs."""
    task = f"{submit(fresh.store)}-01"
    return start(fresh.store, task).id


def written_log(server: WebServer, attempt: str) -> Path:
    path = log_path(server.data, attempt)
    path.parent.mkdir()
    return path


def test_a_log_of_gigabytes_is_read_in_ranges(fresh: WebServer, attempt: str) -> None:
    path = written_log(fresh, attempt)
    with path.open("wb") as file:
        file.truncate(2 << 30)
        file.seek(2 << 30)
        file.write(b"the end\n")
    with fresh.client() as client:
        part = client.get(f"attempts/{attempt}/log", headers={"Range": f"bytes={2 << 30}-"})
        assert (part.status_code, part.text) == (206, "the end\n")
        assert part.headers["content-range"] == f"bytes {2 << 30}-{(2 << 30) + 7}/{(2 << 30) + 8}"
        assert "script" not in part.headers["content-security-policy"]
        assert client.get(f"attempts/{attempt}/log", params={"offset": -4}).text == "end\n"
        assert client.get(f"attempts/{attempt}/log", headers={"Range": f"bytes={3 << 30}-"}).status_code == 416


def test_a_log_is_followed_to_the_end_of_its_attempt(fresh: WebServer, attempt: str) -> None:
    path = written_log(fresh, attempt)
    path.write_text("first\n")
    with fresh.client() as client, client.stream("GET", f"attempts/{attempt}/log", params={"follow": True}) as answer:
        parts = answer.iter_text()
        assert next(parts) == "first\n"
        with path.open("a") as file:
            file.write("second\n")
        assert next(parts) == "second\n"
        with path.open("a") as file:
            file.write("last\n")
        finish(fresh.store, result_of_attempt(fresh, attempt))
        assert "".join(parts) == "last\n"


def result_of_attempt(server: WebServer, attempt: str) -> Any:
    from db.reads import reports
    from jobs.task import TaskResult

    return TaskResult(attempt, reports.attempt(server.database, attempt).epoch, None)


def test_a_log_of_another_machine_is_what_the_head_fetches(fresh: WebServer, attempt: str) -> None:
    with fresh.client() as client:
        assert client.get(f"attempts/{attempt}/log").text == ""
        assert fresh.store.followed() == [attempt]
        fresh.store.add_log_chunks([LogChunk(attempt, 0, "there\n"), LogChunk(attempt, 6, "and more\n")])
        assert client.get(f"attempts/{attempt}/log").text == "there\nand more\n"
        assert client.get(f"attempts/{attempt}/log", params={"offset": 6}).text == "and more\n"


def test_an_ended_attempt_whose_log_is_elsewhere_has_its_tail(fresh: WebServer) -> None:
    task = f"{submit(fresh.store)}-01"
    bring(fresh.store, task, TaskState.FAILED)
    with fresh.client() as client:
        assert client.get(f"attempts/{task}-1/log").text == "the log's end"
        assert client.get(f"attempts/{task}-1/log", params={"offset": -3}).text == "end"


def test_an_artifact_is_read_by_its_digest_in_ranges(fresh: WebServer, tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text("<script>module</script>")
    artifact = ArtifactStore(fresh.data / "artifacts").put(tmp_path / "model.mlir", "mlir", may_link=False)
    task = f"{submit(fresh.store)}-01"
    begun = start(fresh.store, task)
    result = result_of(begun, measurements=NUMBERS)
    finish(fresh.store, type(result)(**{**vars(result), "artifacts": (artifact,)}))
    assert fresh.get(f"artifacts/{artifact.sha256}")["made_by"][0]["task"] == task
    with fresh.client() as client:
        for name in (artifact.sha256, artifact.sha256[:12], f"{task}/model.mlir"):
            whole = client.get(f"artifacts/{name}/content")
            assert whole.text == "<script>module</script>"
        assert whole.headers["content-type"] == "application/octet-stream"
        assert whole.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert 'filename="model.mlir"' in whole.headers["content-disposition"]
        part = client.get(f"artifacts/{artifact.sha256}/content", headers={"Range": "bytes=1-6"})
        assert (part.status_code, part.text) == (206, "script")


@contextmanager
def listening(client: httpx2.Client) -> Iterator[Iterator[str]]:
    with client.stream("GET", "changes") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer.iter_lines()


def until_changed(lines: Iterator[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    for line in lines:
        assert time.monotonic() < deadline
        if line == "event: changed":
            return
    raise AssertionError("the stream ended")


def test_many_pages_hear_of_a_change_from_one_watcher(fresh: WebServer) -> None:
    before = len(watchers())
    with ExitStack() as open_pages:
        client = open_pages.enter_context(open_client(fresh))
        pages = [open_pages.enter_context(listening(client)) for _ in range(200)]
        assert len(watchers()) == before
        submit(fresh.store)
        for lines in pages:
            until_changed(lines)


def open_client(server: WebServer) -> httpx2.Client:
    """A client with as many connections as requests."""
    return httpx2.Client(
        base_url=f"{server.url}/api/v1",
        headers={"Authorization": f"Bearer {server.token}"},
        timeout=DEADLINE_S,
        limits=httpx2.Limits(max_connections=None),
    )


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "database-watch"]


def test_many_requests_at_a_time_are_all_answered(fresh: WebServer) -> None:
    submit(fresh.store)
    with open_client(fresh) as client, ThreadPoolExecutor(300) as pool:
        answers = list(pool.map(lambda number: client.get("jobs", params={"limit": number + 1}), range(300)))
    assert [len(answer.json()) for answer in answers] == [1] * 300


def test_a_database_that_goes_away_is_waited_for(postgres: databases.PostgresServer, tmp_path: Path) -> None:
    with postgres.new_database() as url, running(url, tmp_path) as server:
        assert server.get("jobs") == []
        with postgres.stopped(), server.client() as client:
            answer = client.get("jobs")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.json()["error"] == "DatabaseUnreachable"
            anybody = httpx2.get(f"{server.url}/api/v1/health")
            assert (anybody.status_code, "127.0.0.1" in anybody.text) == (503, False)
        assert server.get("jobs") == []
        with server.client() as client, listening(client) as lines:
            submit(server.store)
            until_changed(lines)
