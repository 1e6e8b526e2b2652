"""The server's HTTP interface: OpenAI's API, health and metrics."""

import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from workers.llm.serving.completions import Answer, chat_answer, completion_answer
from workers.llm.serving.connection_limits import MAX_STALL_S, ClosingStream, ConnectionLimits
from workers.llm.serving.disconnects import until_disconnect
from workers.llm.serving.engine import Engine, Unavailable
from workers.llm.serving.errors import add_error_handlers, error_body
from workers.llm.serving.generation import Parts, ProgramFailed, generate, joined
from workers.llm.serving.openai_types import ChatBody, CompletionBody
from workers.llm.serving.server_metrics import ServerMetrics
from workers.llm.serving.texts import TextCodec


@dataclass
class Service:
    """What the routes answer from."""

    engine: Engine
    codec: TextCodec
    model: str
    api_key: str | None = None  #: that every request but those for health must bring

    def __post_init__(self) -> None:
        self.metrics = ServerMetrics(self.engine)


def make_app(max_stall_s: float = MAX_STALL_S) -> FastAPI:
    """Return the application; it answers 503 until `state.service` is set."""
    app = FastAPI(title="haloctl serve", docs_url=None, redoc_url=None)
    app.state.service = None
    app.add_middleware(ConnectionLimits, max_stall_s=max_stall_s)
    add_error_handlers(app)
    _add_routes(app)
    return app


async def prove_health(service: Service) -> None:
    """Compute one real completion. Raises ProgramFailed when the program can't."""
    body = CompletionBody(prompt=[0], max_tokens=2, temperature=0.0, ignore_eos=True)
    answer = completion_answer(body, service.engine, service.codec, service.model)
    await joined(generate(service.engine, answer.choices))


def _add_routes(app: FastAPI) -> None:
    @app.get("/health")
    async def health(request: Request) -> Response:
        service: Service | None = request.app.state.service
        return Response(status_code=200 if service and service.engine.failure is None else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        return Response(_checked(request).metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        service = _checked(request)
        model = {"id": service.model, "object": "model", "created": 0, "owned_by": "haloctl"}
        return {"object": "list", "data": [{**model, "max_model_len": service.engine.capacity.length}]}

    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        service = _checked(request)
        _check_model(body.model, service)
        return await _respond(service, completion_answer(body, service.engine, service.codec, service.model), request)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        service = _checked(request)
        _check_model(body.model, service)
        return await _respond(service, chat_answer(body, service.engine, service.codec, service.model), request)


def _checked(request: Request) -> Service:
    """Return the service to a request that brings its key, if there is one."""
    service: Service | None = request.app.state.service
    if service is None:
        raise Unavailable("the program is still being loaded")
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if service.api_key is not None and not hmac.compare_digest(given.encode(), service.api_key.encode()):
        raise HTTPException(401, "give the server's key as: Authorization: Bearer KEY")
    return service


def _check_model(name: str, service: Service) -> None:
    if name not in ("", service.model):
        raise HTTPException(404, f"there is no model {name} here, only {service.model}")


async def _respond(service: Service, answer: Answer, request: Request) -> Response:
    parts = _timed(service, generate(service.engine, answer.choices))
    if not answer.body.stream:
        whole = await until_disconnect(request, joined(parts))
        return JSONResponse(answer.whole(whole)) if whole is not None else Response(status_code=499)
    first = await anext(parts)  # what is refused is refused with a status, and not within the stream
    return ClosingStream(_events(answer, parts, first), media_type="text/event-stream")


async def _events(answer: Answer, parts: AsyncIterator[Parts], first: Parts) -> AsyncIterator[bytes]:
    """Yield a stream's events: one for each token, whether it makes text or not, since clients count them."""
    async with aclosing(parts):  # type: ignore[type-var]
        if first:
            yield b"".join(answer.chunk(*news) for news in first)
        try:
            async for later in parts:
                yield b"".join(answer.chunk(*news) for news in later)
        except ProgramFailed as problem:
            yield b"data: " + json.dumps(error_body(500, str(problem))).encode() + b"\n\n"
            return
    yield answer.last_chunks()


async def _timed(service: Service, parts: AsyncIterator[Parts]) -> AsyncIterator[Parts]:
    """Note when tokens came."""
    began = last = time.monotonic()
    is_first = True
    async with aclosing(parts):  # type: ignore[type-var]
        async for news in parts:
            now = time.monotonic()
            if any(part.tokens for _, part in news):
                (service.metrics.first_token_s if is_first else service.metrics.token_s).observe(now - last)
                is_first, last = False, now
            yield news
    service.metrics.request_s.observe(time.monotonic() - began)
