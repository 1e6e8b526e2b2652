"""The client, and the jobs that it submits."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from jobs.errors import BadSetting, JobFileError
from jobs.state import JobState
from orchestrator.client.answers import Answers, Row, SubmitRequest
from orchestrator.client.rows import Rows

SERVER, TOKEN, TOKEN_FILE = "HALOCTL_SERVER", "HALOCTL_TOKEN", "HALOCTL_TOKEN_FILE"

JobFile = Mapping[str, Any] | str | os.PathLike[str]


class Client:
    """haloctl from Python: the database of this machine's settings, or a server.

    A context manager; answers are the objects that commands print with `--json`. Errors are those of the command line:
    subclasses of `HaloError`.
    """

    def __init__(self, server: str | None = None, token: str | None = None) -> None:
        """Connect to a server, by default HALOCTL_SERVER; without one, open the database.

        The token is by default HALOCTL_TOKEN, the content of HALOCTL_TOKEN_FILE, or for a server of this machine the
        one in the data folder.
        """
        address = server or os.environ.get(SERVER)
        self._answers = _connect(address, token) if address else _open_database()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._answers.close()

    def submit(
        self,
        job: JobFile,
        *,
        cache: bool = True,
        reuse_measurements: bool = False,
        start: str | None = None,
        priority: int | None = None,
    ) -> "Job":
        """Submit a job: a mapping, the path of a job file, or a recipe's name; `start` is submit's `--from`.

        Raises JobFileError, and other UserErrors for what can't work.
        """
        request = _request(job, cache=cache, reuse_measurements=reuse_measurements, start=start, priority=priority)
        return Job(self._answers, self._answers.submit(request))

    def plan(self, job: JobFile) -> Row:
        """Return the tasks of a job with their commands, and store nothing: submit's `--dry-run`."""
        return self._answers.plan(_request(job))

    def jobs(self, limit: int = 20) -> Rows:
        """Return the newest jobs."""
        return Rows(self._answers.jobs(limit))

    def job(self, name: str) -> "Job":
        """Return a job by its id or a unique prefix. Raises NotFound."""
        return Job(self._answers, str(self._answers.job(name)["job"]))

    def task(self, name: str) -> Row:
        """Return a task with its attempts. Raises NotFound."""
        return self._answers.task(name)

    def why(self, name: str) -> Row:
        """Return why a task ran, was cached, failed, or has not run. Raises NotFound."""
        return self._answers.why(name)

    def log(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield the log of a task or an attempt, with `follow` until it has ended. Raises NotFound, NothingToDo."""
        return self._answers.log(name, follow=follow)

    def matrix(
        self,
        job: str | None = None,
        *,
        model: str | None = None,
        variant: str | None = None,
        target: str | None = None,
        toolchain: str | None = None,
    ) -> Rows:
        """Return the matrix of a job, or the newest verdict of each cell; filters are names or patterns."""
        return Rows(self._answers.matrix(job=job, model=model, variant=variant, target=target, toolchain=toolchain))

    def results(
        self,
        *,
        job: str | None = None,
        model: str | None = None,
        variant: str | None = None,
        target: str | None = None,
        toolchain: str | None = None,
        metric: str | None = None,
        since: str | None = None,
        limit: int | None = None,
    ) -> Rows:
        """Return measurements with samples and contexts, newest first; `since` is a date, time or age: `7d`."""
        names = {"job": job, "model": model, "variant": variant, "target": target, "toolchain": toolchain}
        return Rows(self._answers.results(limit, metric=metric, since=since, **names))

    def compare(self, old: str, new: str, **options: Any) -> Rows:
        """Say whether `new` is faster than `old`; both select runs as for `haloctl compare`, as do the options
        metric, model, variant, target, margin, each_device and disturbed.
        """
        return Rows(self._answers.compare(old, new, **options))

    def trend(self, metric: str, **options: Any) -> Rows:
        """Return the series of a metric with their level changes; options are those of `haloctl trend`."""
        return Rows(self._answers.trend(metric, **options))

    def targets(self) -> Rows:
        """Return the quoted numbers that results are compared with."""
        return Rows(self._answers.targets())

    def nodes(self) -> Rows:
        """Return the recorded nodes with their devices."""
        return Rows(self._answers.nodes())

    def artifacts(
        self, *, job: str | None = None, variant: str | None = None, kind: str | None = None, limit: int | None = None
    ) -> Rows:
        """Return files that tasks made, newest first."""
        return Rows(self._answers.artifacts(limit, job=job, variant=variant, kind=kind))

    def download(self, name: str, path: str | os.PathLike[str]) -> Path:
        """Fetch a file by its sha256, a unique prefix of it, or TASK/NAME, into a new file, and verify it."""
        goal = Path(path)
        if os.path.lexists(goal):
            raise BadSetting("path", f"{goal} exists already; name another file")
        self._answers.download(name, goal)
        return goal

    def cancel(self, name: str) -> list[str]:
        """Cancel a job or a task; return the tasks. Raises NotFound, NothingToDo."""
        return self._answers.cancel(name)

    def retry(self, name: str) -> list[str]:
        """Queue failed, blocked and cancelled tasks again; return them. Raises NotFound, NothingToDo."""
        return self._answers.retry(name)


class Job:
    """A job of the client that returned it."""

    def __init__(self, answers: Answers, name: str) -> None:
        self._answers = answers
        self.id = name

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def show(self) -> Row:
        """Return the job with its tasks, as it is now."""
        return self._answers.job(self.id)

    @property
    def state(self) -> JobState:
        """Its state now."""
        return JobState(self.show()["state"])

    def tasks(self) -> Rows:
        """Return its tasks."""
        return Rows(self.show()["tasks"])

    def wait(self, timeout_s: float | None = None) -> JobState:
        """Wait until nothing of it can run any more, or for a time; return its state.

        Without a server, and where no head has ever led, this process runs it.
        """
        self._answers.wait(self.id, timeout_s)
        return self.state

    def matrix(self) -> Rows:
        """Return its matrix."""
        return Rows(self._answers.matrix(job=self.id))

    def results(self, *, metric: str | None = None) -> Rows:
        """Return its measurements."""
        return Rows(self._answers.results(None, job=self.id, metric=metric))

    def cancel(self) -> list[str]:
        """Cancel it; return the tasks. Raises NothingToDo."""
        return self._answers.cancel(self.id)

    def retry(self) -> list[str]:
        """Queue what failed again; return the tasks. Raises NothingToDo."""
        return self._answers.retry(self.id)


def _open_database() -> Answers:
    from orchestrator.client.local import LocalAnswers

    return LocalAnswers()


def _connect(server: str, token: str | None) -> Answers:
    from orchestrator.client.remote import RemoteAnswers

    return RemoteAnswers(server, token or _token(server))


def _token(server: str) -> str:
    """Return the token for a server. Raises BadSetting where there is none, StorageUnusable where others read it."""
    from orchestrator.client.remote import LOOPBACK
    from orchestrator.settings import from_environment
    from orchestrator.web import local_token

    if token := os.environ.get(TOKEN, "").strip():
        return token
    if file := os.environ.get(TOKEN_FILE):
        return local_token.read_token(Path(file).expanduser())
    local_file = local_token.token_file(from_environment().data)
    if urlsplit(server).hostname in LOOPBACK and local_file.exists():
        return local_token.read_token(local_file)
    raise BadSetting(TOKEN_FILE, f"{server} takes a token: name a file with one, which `haloctl tokens create` makes")


def _request(job: JobFile, **options: Any) -> SubmitRequest:
    if isinstance(job, Mapping):
        return SubmitRequest(yaml.safe_dump(dict(job), sort_keys=False), "", **options)
    from orchestrator.submission.job_file import find

    file = find(os.fspath(job))
    try:
        return SubmitRequest(file.read_text(encoding="utf-8"), str(file), **options)
    except (OSError, UnicodeError) as error:
        raise JobFileError(str(file), None, "", f"can't be read: {error}") from error
