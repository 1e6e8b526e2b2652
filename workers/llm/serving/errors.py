"""Errors in the form of OpenAI's API."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from workers.llm.serving.engine import QueueFull, Refused, Unavailable
from workers.llm.serving.generation import ProgramFailed
from workers.llm.serving.texts import BadPrompt

STATUSES: dict[type[Exception], int] = {
    BadPrompt: 400,
    Refused: 400,
    QueueFull: 429,
    ProgramFailed: 500,
    Unavailable: 503,
}

#: pydantic's words for a body that is no object: https://docs.pydantic.dev/latest/errors/validation_errors/
NOT_AN_OBJECT = ("json_invalid", "model_attributes_type", "model_type")


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return the body of an answer that is an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def add_error_handlers(app: FastAPI) -> None:
    """Answer each of the server's exceptions with its status."""
    for kind in STATUSES:
        app.add_exception_handler(kind, _handler(lambda problem: (STATUSES[type(problem)], str(problem))))
    app.add_exception_handler(HTTPException, _handler(lambda problem: (problem.status_code, str(problem.detail))))
    app.add_exception_handler(RequestValidationError, _handler(lambda problem: (400, _first_fault(problem))))


def _handler(describe: Callable[[Any], tuple[int, str]]) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(_: Request, problem: Exception) -> Response:
        status, message = describe(problem)
        headers = {"Retry-After": f"{problem.retry_after_s:.0f}"} if isinstance(problem, QueueFull) else None
        return JSONResponse(error_body(status, message), status, headers)

    return handle


def _first_fault(problem: RequestValidationError) -> str:
    """Return where a body is wrong first, and why."""
    fault = problem.errors()[0]
    if fault["type"] in NOT_AN_OBJECT:
        return "the body must be a JSON object, with Content-Type: application/json"
    place = ".".join(str(part) for part in fault["loc"][1:] if isinstance(part, int) or part.replace("_", "").islower())
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
