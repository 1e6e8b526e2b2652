"""A client that leaves its answer unread is dropped; real sockets, with little room between both ends."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager

import uvicorn
from fastapi import FastAPI

from workers.llm.serving.connection_limits import ClosingStream, ConnectionLimits

CHUNK = b"x" * 65536


@contextmanager
def running(app: FastAPI) -> Iterator[int]:
    """Serve an application; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def test_who_stops_reading_is_dropped_and_others_go_on() -> None:
    ended = threading.Event()
    app = FastAPI()
    app.add_middleware(ConnectionLimits, max_stall_s=0.5)

    @app.get("/endless")
    async def endless() -> ClosingStream:
        async def stream() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield CHUNK
                    await asyncio.sleep(0)
            finally:
                ended.set()

        return ClosingStream(stream())

    @app.get("/short")
    async def short() -> str:
        return "whole"

    with running(app) as port, closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
        with closing(socket.create_connection(("127.0.0.1", port))) as other:
            other.sendall(b"GET /short HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert other.makefile("rb").read().endswith(b'"whole"')
        assert ended.wait(30)
