"""The process of a server: it listens at once, answers when its program is loaded, and ends in order."""

import asyncio
import signal
import socket
from collections.abc import Callable

import uvicorn
import uvloop

from workers.llm.serving.app import Service, make_app, prove_health

DRAIN_S = 7  #: for requests to end after a signal


def serve(
    listening: socket.socket,
    load: Callable[[asyncio.AbstractEventLoop, Callable[[], None]], Service],
    announce: Callable[[], None],
) -> None:
    """Serve until a signal, or until the program fails: then its exception is raised.

    `load` makes the service, given the event loop and what ends the server; `announce` is called once a completion has
    been computed.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn ends at them, then sends them again
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(listening, load, announce))


async def _serve(
    listening: socket.socket,
    load: Callable[[asyncio.AbstractEventLoop, Callable[[], None]], Service],
    announce: Callable[[], None],
) -> None:
    app, loop = make_app(), asyncio.get_running_loop()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=DRAIN_S,
        )
    )

    def end() -> None:
        server.should_exit = True

    async def start() -> Service:
        try:
            service = await asyncio.to_thread(load, loop, end)
            await prove_health(service)
        except BaseException:
            end()
            raise
        app.state.service = service
        announce()
        return service

    starting = asyncio.create_task(start())
    await server.serve(sockets=[listening])
    if not starting.done():
        return  # what is being loaded ends with the process
    service = starting.result()
    await asyncio.to_thread(service.engine.close)
    if service.engine.failure:
        raise service.engine.failure
