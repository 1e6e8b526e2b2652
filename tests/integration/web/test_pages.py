"""Pages as the server sends them: for people who are logged in, without a line of script in them."""

import re
from collections.abc import Iterator

import httpx2
import pytest

from jobs.state import Failure, FailureKind, TaskState
from tests.integration.web.servers import WebServer
from tests.stored_jobs import bring, fail, submit

PAGES = (
    "/", "/?order=failing-first", "/?order=failing-only", "/?job={job}", "/since", "/since?begin=9999d", "/performance",
    "/performance?metric=ttft_ms&variant=*TP8", "/compare", "/compare?old=variant:*-FP16-TP8&new=variant:*-BF16-TP8",
    "/jobs", "/jobs/{job}", "/tasks/{task}", "/nodes", "/submit", "/login",
)  # fmt: skip
#: What the policy would refuse: scripts, handlers and styles within a page.
INLINE = re.compile(
    r"<script(?![^>]*(?: src=| type=\"application/json\"))|<style|\sstyle=|\son[a-z]+=|javascript:", re.I
)


@pytest.fixture
def browser(filled: WebServer) -> Iterator[httpx2.Client]:
    """Somebody who is logged in."""
    with httpx2.Client(base_url=filled.url, cookies={"haloctl_token": filled.token}, timeout=60) as client:
        yield client


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_content_and_nothing_inline(filled: WebServer, browser: httpx2.Client, page: str) -> None:
    job = filled.get("jobs")[-1]["job"]
    answer = browser.get(page.format(job=job, task=f"{job}-40"))
    assert answer.status_code == 200, answer.text
    assert "<h1>" in answer.text
    assert INLINE.search(answer.text) is None
    assert "'unsafe" not in answer.headers["content-security-policy"]


def test_an_open_page_gets_its_main_part_alone_when_something_changed(browser: httpx2.Client) -> None:
    part = browser.get("/", headers={"HX-Request": "true"})
    assert part.text.startswith('<main id="main"')
    assert part.text.rstrip().endswith("</main>")
    assert browser.get("/").text.startswith("<!DOCTYPE html>")
    tag = part.headers["etag"]
    assert browser.get("/", headers={"HX-Request": "true", "If-None-Match": tag}).status_code == 304


def test_the_matrix_shows_failures_first_or_alone(browser: httpx2.Client) -> None:
    variants = re.compile(r'scope="row"><a[^>]*>([^<]*)<')
    ordered = variants.findall(browser.get("/?order=failing-first").text)
    assert [name.endswith("TP8") for name in ordered[:3]] == [True, True, False]
    assert variants.findall(browser.get("/?order=failing-only").text) == ordered[:2]


def test_who_is_not_logged_in_comes_back_to_the_page_afterwards(filled: WebServer) -> None:
    with httpx2.Client(base_url=filled.url) as client:
        sent = client.get("/jobs?after=ffff")
        assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=%2Fjobs%3Fafter%3Dffff")
        wrong = client.post("/login", data={"token": "wrong", "next": "/jobs"})
        assert (wrong.status_code, "the token is wrong" in wrong.text) == (401, True)
        right = client.post("/login", data={"token": filled.token, "next": "/jobs"})
        assert (right.status_code, right.headers["location"]) == (303, "/jobs")
        cookie = right.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
        assert client.get("/jobs").status_code == 200
        client.post("/logout")
        assert client.get("/jobs").status_code == 303


@pytest.mark.parametrize("goal", ["//evil.org", "https://evil.org", "/\\evil.org", "javascript:x", "evil"])
def test_logging_in_leads_to_no_other_site(filled: WebServer, goal: str) -> None:
    with httpx2.Client(base_url=filled.url) as client:
        answer = client.post("/login", data={"token": filled.token, "next": goal})
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    ("page", "code", "says"),
    [
        ("/jobs/ffff", 404, "no job is called"),
        ("/tasks/ffff-01", 404, "no task is called"),
        ("/since?begin=soon", 400, "is neither a date"),
        ("/performance?metric=speed", 400, "unknown metric"),
        ("/compare?old=x&new=y", 409, "has no measurements"),
        ("/nothing", 404, "Not Found"),
        ("/static/../server.py", 404, "Not Found"),
    ],
)
def test_an_error_is_a_page(browser: httpx2.Client, page: str, code: int, says: str) -> None:
    answer = browser.get(page)
    assert (answer.status_code, says in answer.text) == (code, True)


def test_what_others_wrote_is_shown_as_it_is(fresh: WebServer) -> None:
    nasty = "<img src=x onerror=alert(1)> \u202e {{ 7 * 7 }}"
    task = f"{submit(fresh.store, submitted_by=nasty)}-01"
    fail(fresh.store, task, Failure(FailureKind.TOOL_FAILED, nasty, f"{nasty}\n"))
    with httpx2.Client(base_url=fresh.url, cookies={"haloctl_token": fresh.token}) as client:
        pages = [client.get(page).text for page in ("/", "/jobs", f"/jobs/{task[:8]}", f"/tasks/{task}", "/since")]
    for page in pages:
        assert "&lt;img" in page
        assert "<img" not in page
        assert "\u202e" not in page
        assert "{{ 7 * 7 }}" in page


def test_a_form_cancels_and_retries_and_shows_the_job_again(fresh: WebServer) -> None:
    job = submit(fresh.store)
    bring(fresh.store, f"{job}-01", TaskState.QUEUED)
    with httpx2.Client(base_url=fresh.url, cookies={"haloctl_token": fresh.token}) as client:
        refused = client.post(f"/jobs/{job}/cancel", headers={"Sec-Fetch-Site": "cross-site"})
        assert refused.status_code == 403
        for action, state in (("cancel", "cancelled"), ("retry", "queued")):
            done = client.post(f"/jobs/{job}/{action}", headers={"Sec-Fetch-Site": "same-origin"})
            assert (done.status_code, done.headers["location"]) == (303, f"/jobs/{job}")
            assert fresh.get(f"jobs/{job}")["state"] == state


def test_a_refused_job_file_is_shown_with_its_line(fresh: WebServer) -> None:
    text = "name: x\nmodel: tiny-llama\nvariants:\n  tp: 0\n"
    with httpx2.Client(base_url=fresh.url, cookies={"haloctl_token": fresh.token}) as client:
        page = client.post("/submit", data={"text": text, "action": "submit"}).text
    assert '<span class="wrong">   4    tp: 0</span>' in page
    assert "variants.tp" in page
    assert fresh.get("jobs") == []
