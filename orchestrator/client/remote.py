"""Answers of a server, `haloctl web`, over HTTP."""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import httpx2

from jobs.errors import ArtifactLost, BadSetting, NothingToDo
from jobs.state import JobState
from orchestrator.client.answers import Row, SubmitRequest
from orchestrator.client.errors import ServerRefused, ServerUnreachable, error_of

API = "/api/v1"
TIMEOUT_S = 60.0  #: for an answer; a submission checks a model, and waits for others that do
SUBMIT_TIMEOUT_S = 900.0
POLL_S = 1.0  #: a question whose answer has not changed costs the server no query
PATIENCE_S = 60.0  #: for a server that is away while a job is waited for
AFTER_ATTEMPT_S = 0.2
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
OPEN_STATES = frozenset({JobState.QUEUED, JobState.RUNNING})


class RemoteAnswers:
    """A server, asked with a token."""

    def __init__(self, server: str, token: str) -> None:
        """Raises BadSetting for what is no address."""
        self._server = server.rstrip("/")
        parts = _split(self._server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadSetting("HALOCTL_SERVER", f"{server!r} is no address such as https://halo.example.org")
        if parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise BadSetting("HALOCTL_SERVER", f"{server} would send the token for all to read: give https://...")
        if parts.username or parts.password:
            raise BadSetting("HALOCTL_SERVER", "it holds a password; give a token in HALOCTL_TOKEN_FILE instead")
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx2.Client(base_url=self._server + API, headers=headers, timeout=TIMEOUT_S)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def jobs(self, limit: int) -> list[Row]:
        """Return the newest jobs."""
        return self._rows("jobs", limit)

    def job(self, name: str) -> Row:
        """Return a job with its tasks."""
        return self._row(f"jobs/{_part(name)}")

    def task(self, name: str) -> Row:
        """Return a task with its attempts."""
        return self._row(f"tasks/{_part(name)}")

    def why(self, name: str) -> Row:
        """Return why a task ran or did not."""
        return self._row(f"tasks/{_part(name)}/why")

    def matrix(self, **filters: str | None) -> list[Row]:
        """Return the matrix."""
        return self._list("matrix", **filters)

    def results(self, limit: int | None, **filters: str | None) -> list[Row]:
        """Return measurements, newest first."""
        return self._rows("results", limit, **filters)

    def compare(self, old: str, new: str, **options: Any) -> list[Row]:
        """Compare two selections of runs."""
        return self._list("compare", old=old, new=new, **options)

    def trend(self, metric: str, **options: Any) -> list[Row]:
        """Return the series of a metric."""
        return self._list(f"trend/{_part(metric)}", **options)

    def targets(self) -> list[Row]:
        """Return the targets in force."""
        return self._list("targets")

    def nodes(self) -> list[Row]:
        """Return the recorded nodes."""
        return self._list("nodes")

    def artifacts(self, limit: int | None, **filters: str | None) -> list[Row]:
        """Return files that tasks made, newest first."""
        return self._rows("artifacts", limit, **filters)

    def plan(self, request: SubmitRequest) -> Row:
        """Return the tasks of a job without storing it."""
        return self._submit(request, dry_run=True)

    def submit(self, request: SubmitRequest) -> str:
        """Store a job; return its id."""
        return str(self._submit(request, dry_run=False)["job"])

    def _submit(self, request: SubmitRequest, *, dry_run: bool) -> Row:
        options = {
            "cache": request.cache,
            "reuse_measurements": request.reuse_measurements,
            "from": request.start,
            "priority": request.priority,
            "dry_run": dry_run,
        }
        file = request.file or "job file"
        answer = self._ask("POST", "jobs", file, options, content=request.text, timeout=SUBMIT_TIMEOUT_S)
        row: Row = answer.json()
        return row

    def cancel(self, name: str) -> list[str]:
        """Cancel a job or a task; return the tasks."""
        tasks: list[str] = self._ask("POST", f"{_kind(name)}/{_part(name)}/cancel").json()["cancelled"]
        return tasks

    def retry(self, name: str) -> list[str]:
        """Queue what failed again; return the tasks."""
        tasks: list[str] = self._ask("POST", f"{_kind(name)}/{_part(name)}/retry").json()["queued"]
        return tasks

    def log(self, name: str, *, follow: bool) -> Iterator[str]:
        """Yield the log of a task or an attempt; with `follow`, until the task has ended with all its attempts."""
        if name.count("-") == 2:
            yield from self._log_of(name, follow=follow)
            return
        seen = None
        while True:
            task = self.task(name)
            has_ended = (
                task["ended_at"] is not None or task["is_unschedulable"] or task["state"] in ("blocked", "cancelled")
            )
            if task["attempt"] not in (None, seen):
                seen = task["attempt"]
                yield from self._log_of(seen, follow=follow)
            elif has_ended or not follow:
                if seen is None:
                    reason = task["waits_for"] or task["blocked_by"] or task["state"]
                    raise NothingToDo(f"task {task['task']} has not run, so it has no log: {reason}")
                return
            else:
                time.sleep(AFTER_ATTEMPT_S)
            if not follow:
                return

    def _log_of(self, attempt: str, *, follow: bool) -> Iterator[str]:
        path = f"attempts/{_part(attempt)}/log"
        with self._faults(), self._http.stream("GET", path, params={"follow": follow}) as answer:
            self._expect(answer, "")
            yield from answer.iter_text()

    def download(self, name: str, path: Path) -> None:
        """Fetch a file into a new one. Raises ArtifactLost where what came has another sha256; nothing is left then."""
        artifact = self._row(f"artifacts/{quote(name)}")
        part = path.with_name(f"{path.name}.part")
        digest = hashlib.sha256()
        try:
            address = f"artifacts/{artifact['sha256']}/content"
            with (
                self._faults(),
                self._http.stream("GET", address, follow_redirects=True) as answer,
                part.open("xb") as file,
            ):
                self._expect(answer, "")
                for data in answer.iter_bytes():
                    digest.update(data)
                    file.write(data)
            if digest.hexdigest() != artifact["sha256"]:
                raise ArtifactLost(artifact["name"], artifact["sha256"], self._server, "not what came")
            os.link(part, path)
        finally:
            part.unlink(missing_ok=True)

    def _content(self, sha256: str) -> Iterator[bytes]:
        address = f"artifacts/{sha256}/content"
        with self._faults(), self._http.stream("GET", address, follow_redirects=True) as answer:
            self._expect(answer, "")
            yield from answer.iter_bytes()

    def wait(self, job: str, timeout_s: float | None) -> None:
        """Return when nothing of a job can run any more, or after a time."""
        began = heard = time.monotonic()
        tag = ""
        while timeout_s is None or time.monotonic() - began < timeout_s:
            try:
                answer = self._ask("GET", f"jobs/{_part(job)}", headers={"If-None-Match": tag})
                heard = time.monotonic()
            except ServerUnreachable:
                if time.monotonic() - heard > PATIENCE_S:
                    raise
            else:
                tag = answer.headers.get("etag", "")
                if answer.status_code == 200 and answer.json()["state"] not in OPEN_STATES:
                    return
            time.sleep(POLL_S)

    def _row(self, path: str) -> Row:
        row: Row = self._ask("GET", path).json()
        return row

    def _list(self, path: str, **query: Any) -> list[Row]:
        rows: list[Row] = self._ask("GET", path, query=query).json()
        return rows

    def _rows(self, path: str, limit: int | None, **filters: Any) -> list[Row]:
        """Return the rows of all pages, at most `limit`."""
        rows: list[Row] = []
        query = {**filters, "limit": min(limit or 1000, 1000)}
        address: str | None = path
        while address is not None and (limit is None or len(rows) < limit):
            answer = self._ask("GET", address, query=query)
            rows += answer.json()
            following = answer.links.get("next", {}).get("url")
            address, query = following and following.removeprefix(API).lstrip("/"), {}
        return rows[:limit]

    def _ask(
        self, method: str, path: str, file: str = "", query: dict[str, Any] | None = None, **options: Any
    ) -> httpx2.Response:
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        with self._faults():
            answer = self._http.request(method, path, params=parameters or None, **options)
        self._expect(answer, file)
        return answer

    def _expect(self, answer: httpx2.Response, file: str) -> None:
        """Raise the error that an answer stands for, if it is none of what was asked for."""
        if answer.status_code < 400:
            return
        answer.read()
        try:
            problem = answer.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict):
            raise ServerUnreachable(self._server, f"it answers {answer.status_code}, and not as haloctl web does")
        raise error_of(self._server, problem, file)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise ServerUnreachable(self._server, f"{reason}; check HALOCTL_SERVER and that it runs") from error
        except (httpx2.InvalidURL, httpx2.HTTPError) as error:
            raise ServerRefused(f"{self._server}: {error}") from error


def _split(server: str) -> SplitResult:
    try:
        return urlsplit(server)
    except ValueError as error:
        raise BadSetting("HALOCTL_SERVER", f"{server!r} is no address: {error}") from None


def _part(name: str) -> str:
    return quote(name, safe="") or "-"


def _kind(name: str) -> str:
    return "tasks" if "-" in name else "jobs"
