"""Errors as problem details (RFC 9457), in the words of the command line.

Beside the standard's members a problem has `error`, the name of the error's class, and `exit_code`, that of a command;
an error of a job file also has `line` and `key`.
"""

import json
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from jobs.errors import Conflict, DatabaseReadOnly, FileError, HaloError, NotFound, Unreachable, UserError

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 5  #: for a database or a store that is out of reach

#: The first class that an error belongs to decides; what belongs to none is a conflict of the request with the state.
STATUSES: dict[type[HaloError], int] = {
    FileError: 422,
    UserError: 400,
    NotFound: 404,
    Conflict: 409,
    DatabaseReadOnly: 403,
    Unreachable: 503,
    HaloError: 409,
}
TITLES = {
    400: "Bad request",
    401: "Not logged in",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Body too large",
    416: "Range not satisfiable",
    422: "Job file refused",
    429: "Too many wrong tokens",
    500: "Internal error",
    503: "Unavailable",
}


def status_of(error: HaloError) -> int:
    """Return the HTTP status of an expected error."""
    return next(status for kind, status in STATUSES.items() if isinstance(error, kind))


def problem_of(error: HaloError) -> dict[str, Any]:
    """Return the details of an expected error."""
    place = {"line": error.line, "key": error.key} if isinstance(error, FileError) else {}
    return _problem(status_of(error), str(error), error=type(error).__name__, exit_code=error.exit_code, **place)


def _problem(status: int, detail: str, **members: Any) -> dict[str, Any]:
    return {"type": "about:blank", "title": TITLES.get(status, "Error"), "status": status, "detail": detail, **members}


Respond = Callable[[Request, int, dict[str, Any], dict[str, str]], Response]


def respond_in_json(_: Request, status: int, problem: dict[str, Any], headers: dict[str, str]) -> Response:
    """Return a problem as a response for programs."""
    return Response(json.dumps(problem), status, headers, PROBLEM_TYPE)


def add_error_handlers(app: FastAPI, respond: Respond) -> None:
    """Answer every error with a problem; one that passes by itself says when to try again."""

    def answer(request: Request, problem: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
        status = int(problem["status"])
        retry = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
        return respond(request, status, problem, {**retry, **(headers or {})})

    @app.exception_handler(HaloError)
    async def expected(request: Request, error: HaloError) -> Response:
        return answer(request, problem_of(error))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return answer(request, _problem(error.status_code, str(error.detail)), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        detail = f"{first['loc'][-1]}: {first['msg'][0].lower()}{first['msg'][1:]}"
        return answer(request, _problem(400, detail, error="BadSetting", exit_code=UserError.exit_code))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return answer(request, _problem(500, "a bug: the log of `haloctl web` has its traceback"))
