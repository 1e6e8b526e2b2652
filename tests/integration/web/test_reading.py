"""What programs read over HTTP is what commands print with `--json`."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from db.store import Store
from tests.integration.commands.in_process import Command, haloctl
from tests.integration.web.servers import WebServer
from tests.stored_jobs import submit

__all__ = ["haloctl"]

TASK = "llama3.1-8B-BF16-TP8 mi300x"

SAME = {
    "jobs": ("list",),
    "jobs/{job}": ("show", "{job}"),
    "tasks/{task}": ("show", "{task}"),
    "tasks/{task}/why": ("why", "{task}"),
    "matrix": ("matrix",),
    "matrix?job={job}": ("matrix", "{job}"),
    "matrix?variant=*TP8": ("matrix", "--variant", "*TP8"),
    "results?metric=itl_ms&variant=*TP8": ("results", "--metric", "itl_ms", "--variant", "*TP8"),
    "compare?old=variant:llama3.1-8B-F16-TP8&new=variant:llama3.1-8B-F16-TP4": (
        *("compare", "variant:llama3.1-8B-F16-TP8", "variant:llama3.1-8B-F16-TP4"),
    ),
    "trend/itl_ms?batch=4": ("trend", "itl_ms", "--batch", "4"),
    "targets": ("targets",),
    "events?limit=7": ("events", "-n", "7"),
    "usage?by=model&since=2000-01-01": ("usage", "--by", "model", "--since", "2000-01-01"),
}


@pytest.mark.parametrize("path", SAME)
def test_an_answer_is_that_of_the_command(
    filled: WebServer, haloctl: Command, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("HALOCTL_DATA", str(filled.data))
    job = filled.get("jobs")[-1]["job"]
    names = {"job": job, "task": f"{job}-40"}
    said = haloctl(*(word.format_map(names) for word in SAME[path]), "--json")
    with filled.client() as client:
        answer = client.get(path.format_map(names))
    if said.code:
        assert answer.json()["detail"] in said.err
    else:
        assert answer.json() == json.loads(said.out)
        assert len(answer.json()) or path == "targets"


@pytest.mark.parametrize("path", ["results", "artifacts"])
def test_pages_have_each_row_once(filled: WebServer, path: str) -> None:
    whole = filled.get(path, limit=10_000)
    assert pages_of(filled, path, 23) == whole
    assert len(whole) > 100


def test_pages_of_jobs_go_on_where_they_ended_when_jobs_are_added(fresh: WebServer) -> None:
    known = {submit(fresh.store) for _ in range(5)}
    first, following = page_of(fresh, "jobs", {"limit": "2"})
    submit(fresh.store)
    seen = [*first, *pages_of(fresh, "jobs", 2, following)]
    assert {row["job"] for row in seen} == known
    assert len(seen) == len(known)


def page_of(server: WebServer, path: str, query: dict[str, str]) -> tuple[list[dict[str, object]], dict[str, str]]:
    """The rows of a page, and the query of the next; empty: there is none."""
    with server.client() as client:
        answer = client.get(path, params=query)
    following = answer.links.get("next", {}).get("url", "")
    return answer.json(), {name: values[0] for name, values in parse_qs(urlsplit(following).query).items()}


def pages_of(server: WebServer, path: str, limit: int, query: dict[str, str] | None = None) -> list[dict[str, object]]:
    query, rows = query or {"limit": str(limit)}, []
    while query:
        page, query = page_of(server, path, query)
        assert len(page) <= limit
        rows += page
    return rows


def test_an_answer_is_not_sent_again_until_something_was_written(fresh: WebServer) -> None:
    with fresh.client() as client:
        first = client.get("jobs")
        known = {"If-None-Match": f'"x", {first.headers["etag"]}'}
        assert client.get("jobs", headers=known).status_code == 304
        submit(fresh.store)
        changed = client.get("jobs", headers=known)
        assert (changed.status_code, len(changed.json())) == (200, 1)
        assert changed.headers["etag"] != first.headers["etag"]
    assert Store(fresh.database).snapshot().tasks


def test_large_answers_are_compressed(filled: WebServer) -> None:
    with filled.client() as client:
        assert client.get("matrix").headers["content-encoding"] == "gzip"


def test_the_interface_describes_itself(filled: WebServer) -> None:
    paths = filled.get("openapi.json")["paths"]
    assert {"/api/v1/jobs", "/api/v1/matrix", "/api/v1/attempts/{attempt}/log"} <= paths.keys()
    assert "requestBody" in paths["/api/v1/jobs"]["post"]


@pytest.mark.parametrize(
    ("path", "code", "error", "says"),
    [
        ("jobs/ffff", 404, "NotFound", "no job is called 'ffff': `haloctl list` shows them"),
        ("tasks/ffff-01", 404, "NotFound", "no task"),
        ("attempts/ffff-01-1", 404, "NotFound", "no attempt"),
        ("attempts/ffff-01-1/log", 404, "NotFound", "no attempt"),
        ("artifacts/" + "f" * 64, 404, "NotFound", "no artifact"),
        ("artifacts/ffff/content", 404, "NotFound", "no artifact"),
        ("artifacts/..%2f..%2fetc%2fpasswd/content", 404, "NotFound", "no task"),
        ("jobs?limit=0", 400, "BadSetting", "limit: input should be greater than or equal to 1"),
        ("jobs?after=nothing", 404, "NotFound", "no job is called 'nothing'"),
        ("results?after=1", 400, "BadSetting", "after: should be the key"),
        ("results?since=yesterday", 400, "BadSetting", "since: 'yesterday' is neither"),
        ("trend/speed", 400, "BadSetting", "unknown metric 'speed'"),
        ("compare?old=x&new=y&margin=nan", 400, "BadSetting", "margin"),
        ("usage?by=colour", 400, "BadSetting", "colour"),
        ("nothing", 404, None, "Not Found"),
    ],
)
def test_errors_are_problems_in_the_words_of_the_command_line(
    filled: WebServer, path: str, code: int, error: str | None, says: str
) -> None:
    with filled.client() as client:
        answer = client.get(path)
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem.get("error")) == (code, code, error)
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in problem["detail"]
