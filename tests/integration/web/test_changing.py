"""Requests that change something: in whose name, from where, and which are refused."""

import httpx2
import pytest
import yaml

from db.reads import events, reports
from db.schema.actors import process_user
from jobs.models import RECIPES
from jobs.state import TaskState
from tests.integration.web.servers import API, WebServer
from tests.stored_jobs import bring, spec_of, submit

JOB = {"name": "tiny", "model": "tiny-llama"}


def test_a_job_is_cancelled_and_queued_again_in_the_users_name(fresh: WebServer) -> None:
    job = submit(fresh.store)
    tasks = [task.id for task in reports.tasks(fresh.database, job)]
    assert fresh.post(f"jobs/{job[:6]}/cancel") == {"cancelled": tasks}
    assert fresh.post(f"tasks/{tasks[0]}/retry")["queued"] == tasks
    happened = events.read_events(fresh.database, events.EventFilter(job))
    assert {event.actor for event in happened} == {process_user()}
    again = fresh.post(f"jobs/{job}/retry", 409)
    assert (again["error"], again["exit_code"]) == ("NothingToDo", 5)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("name: x\nmodel: tiny-llama\nvariants:\n  tp: 0\n", 4, "variants.tp"),
        ("name: x\nmodel: tiny-llama\nstage: [export]\n", 3, "did you mean stages?"),
        ("name: [x\n", 2, "is not YAML"),
        ("name: x\nmodel: ../secret\n", 2, "should be absolute"),
        ("name: x\nmodel: ~root/secret\n", 2, "should be absolute"),
        ("name: x\nmodel: /etc/ssl\n", 2, "is not in a folder that jobs sent to this server may name"),
        ("name: x\nmodel: /no/such/folder\n", 2, "is not in a folder that jobs sent to this server may name"),
        ("name: x\nmodel: tiny-llama\nnumerics:\n  text: /etc/passwd\n", 4, "is not in a folder"),
    ],
)
def test_a_refused_job_file_names_line_and_key(fresh: WebServer, text: str, line: int, says: str) -> None:
    problem = fresh.post("jobs", 422, text)
    assert (problem["error"], problem["line"]) == ("JobFileError", line)
    assert f"job file:{line}: " in problem["detail"]
    assert says in problem["detail"]


def test_a_recipe_that_is_sent_names_what_ships_with_it(fresh: WebServer) -> None:
    text = (RECIPES / "finetune-tiny.yaml").read_text()
    assert fresh.post("jobs", 200, text, dry_run="true")["name"] == "finetune-tiny"


def test_a_link_does_not_lead_out_of_the_readable_folders(fresh: WebServer) -> None:
    link = fresh.data / "models" / "link"
    link.symlink_to("/etc")
    inside = fresh.post("jobs", 422, yaml.safe_dump({**JOB, "model": str(fresh.data / "models" / "none")}))
    assert "does not exist" in inside["detail"]
    assert "is not in a folder" in fresh.post("jobs", 422, yaml.safe_dump({**JOB, "model": str(link)}))["detail"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"priority": "5000"}, "priority"),
        ({"nodes": "all"}, "should be each"),
        ({"from": "compile", "cache": "false"}, "choose one"),
    ],
)
def test_options_of_a_submission_are_those_of_submit(fresh: WebServer, query: dict[str, str], says: str) -> None:
    assert says in fresh.post("jobs", 400, yaml.safe_dump(JOB), **query)["detail"]


def test_who_has_no_token_reads_nothing_and_wrong_ones_are_counted(fresh: WebServer) -> None:
    with httpx2.Client(base_url=fresh.url + API) as client:
        refused = client.get("jobs")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert client.get("health").json() == {"status": "ok"}
    with fresh.client("wrong") as client:
        codes = [client.get("jobs").status_code for _ in range(12)]
        assert codes == [401] * 10 + [429] * 2
        assert 0 < int(client.get("jobs").headers["retry-after"]) <= 61
    assert fresh.get("jobs") == []  # a right token is never told to wait


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://elsewhere"}]
)
def test_a_page_of_another_site_changes_nothing(fresh: WebServer, headers: dict[str, str]) -> None:
    job = submit(fresh.store)
    with fresh.client() as client:
        assert client.post(f"jobs/{job}/cancel", headers=headers).status_code == 403
        assert client.post(f"jobs/{job}/cancel", headers={"Origin": fresh.url}).status_code == 200


def test_a_body_without_end_is_refused_at_once(fresh: WebServer) -> None:
    with fresh.client() as client:
        answer = client.post("jobs", content=(b"x" * (1 << 16) for _ in range(1 << 14)))
    assert answer.status_code == 413
    assert fresh.post("jobs", 422, "x" * (1 << 19))["detail"].endswith("is larger than 256 KiB: give a job file")
    assert "UTF-8" in fresh.post("jobs", 400, content=b"\xff\xfe".decode("latin1").encode("latin1"))["detail"]  # type: ignore[arg-type]


def test_the_token_is_a_file_for_its_user_alone(fresh: WebServer) -> None:
    token = fresh.data / "web-token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text().strip()) >= 40


def test_tasks_are_as_the_store_has_them(fresh: WebServer) -> None:
    task = f"{submit(fresh.store, stages=['export'])}-01"
    bring(fresh.store, task, TaskState.FAILED)
    shown = fresh.get(f"tasks/{task}")
    assert (shown["state"], shown["attempts"][0]["failure"]["kind"]) == ("failed", "tool_failed")
    assert spec_of().name == fresh.get(f"jobs/{task.partition('-')[0]}")["spec"]["name"]
