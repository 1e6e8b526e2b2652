"""A limit on the size of a request's body, whatever its header says."""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workers.llm.serving.errors import error_body

MAX_BODY_BYTES = 16 << 20


class _TooLarge(Exception):
    pass


class BodyLimit:
    """Answers 413 to a body that is too large as soon as that shows, without keeping it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count what its body has."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise _TooLarge
            return message

        try:
            await self._app(scope, counted, send)
        except _TooLarge:
            message = f"the body has more than {MAX_BODY_BYTES >> 20} MiB"
            await JSONResponse(error_body(413, message), 413, {"Connection": "close"})(scope, receive, send)
