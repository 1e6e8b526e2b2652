"""What a client asks, whoever answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Row = dict[str, Any]


@dataclass(frozen=True)
class SubmitRequest:
    """A job to submit: the text of a job file, or the file, and options of `haloctl submit`."""

    text: str
    file: str  #: its path or a recipe's name; empty: the text is all there is
    cache: bool = True
    reuse_measurements: bool = False
    start: str | None = None  #: the stage that runs again, with later ones
    priority: int | None = None


class Answers(Protocol):
    """A database, or a server in front of one. Answers are the objects that commands print with `--json`."""

    def jobs(self, limit: int) -> list[Row]:
        """Return the newest jobs."""

    def job(self, name: str) -> Row:
        """Return a job with its tasks."""

    def task(self, name: str) -> Row:
        """Return a task with its attempts."""

    def why(self, name: str) -> Row:
        """Return why a task ran or did not."""

    def matrix(self, **filters: str | None) -> list[Row]:
        """Return the matrix."""

    def results(self, limit: int | None, **filters: str | None) -> list[Row]:
        """Return measurements, newest first."""

    def compare(self, old: str, new: str, **options: Any) -> list[Row]:
        """Compare two selections of runs."""

    def trend(self, metric: str, **options: Any) -> list[Row]:
        """Return the series of a metric."""

    def targets(self) -> list[Row]:
        """Return the targets in force."""

    def nodes(self) -> list[Row]:
        """Return the recorded nodes."""

    def artifacts(self, limit: int | None, **filters: str | None) -> list[Row]:
        """Return files that tasks made, newest first."""

    def plan(self, request: SubmitRequest) -> Row:
        """Return the tasks of a job without storing it."""

    def submit(self, request: SubmitRequest) -> str:
        """Store a job; return its id."""

    def cancel(self, name: str) -> list[str]:
        """Cancel a job or a task; return the tasks."""

    def retry(self, name: str) -> list[str]:
        """Queue what failed again; return the tasks."""

    def log(self, name: str, *, follow: bool) -> Iterator[str]:
        """Yield the log of a task or an attempt."""

    def download(self, name: str, path: Path) -> None:
        """Fetch a file into a new one, verified."""

    def wait(self, job: str, timeout_s: float | None) -> None:
        """Return when nothing of a job can run any more, or after a time."""

    def close(self) -> None:
        """Close all connections."""
