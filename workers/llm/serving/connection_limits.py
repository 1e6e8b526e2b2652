"""Limits on what one client takes of the server: its request's size, and how long it leaves an answer unread."""

import asyncio
from contextlib import aclosing, suppress

from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 16 << 20
MAX_STALL_S = 30.0


class _ClientStalled(Exception):
    pass


class ClosingStream(StreamingResponse):
    """A stream whose source is closed with it, however it ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().__call__(scope, receive, send)


class ConnectionLimits:
    """Answers 413 to a body that is too large as soon as that shows, and drops clients that stop reading."""

    def __init__(self, app: ASGIApp, max_stall_s: float = MAX_STALL_S, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app, self._max_stall_s, self._max_body_bytes = app, max_stall_s, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, count what its body has, and time what is sent."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body_bytes:
                raise HTTPException(413, f"the body has more than {self._max_body_bytes >> 20} MiB")
            return message

        async def timed(message: Message) -> None:
            try:
                async with asyncio.timeout(self._max_stall_s):
                    await send(message)
            except TimeoutError:
                raise _ClientStalled from None

        with suppress(_ClientStalled):
            await self._app(scope, counted, timed)
