"""What a server refuses, as errors of the same families as without it."""

from typing import Any

from jobs.errors import Conflict, HaloError, JobFileError, NotFound, NothingToDo, Unreachable, UserError


class ServerRefused(UserError):
    """A request that the server refuses: a wrong value, or a user who may not do that."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class NotOnServer(NotFound):
    """An id or name that the server does not know."""

    def __init__(self, message: str) -> None:
        super().__init__("", message)
        self.args = (message,)

    def __str__(self) -> str:
        return self.name


class ServerUnreachable(Unreachable):
    """A server that does not answer, or whose database does not."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)
        self.server, self.reason = server, reason

    def __str__(self) -> str:
        return f"{self.server}: {self.reason}"


def error_of(server: str, problem: dict[str, Any], file: str) -> HaloError:
    """Return the error that a problem stands for; `file` is the job file that was sent, if one was."""
    detail, code = str(problem.get("detail", "")), problem.get("exit_code")
    if problem.get("error") == "JobFileError":
        line, key = problem.get("line"), str(problem.get("key", ""))
        place = "job file" if line is None else f"job file:{line}"
        return JobFileError(file, line, key, detail.removeprefix(f"{place}: ").removeprefix(f"{key}: "))
    if code == NotFound.exit_code:
        return NotOnServer(detail)
    if code == Conflict.exit_code:
        return NothingToDo(detail)
    if code == Unreachable.exit_code or int(problem.get("status", 0)) >= 500:
        return ServerUnreachable(server, detail)
    return ServerRefused(f"{server}: {detail}")
