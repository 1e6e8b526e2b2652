"""The process of the web server."""

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from db.writes.tokens import read_tokens
from jobs.errors import BadSetting
from orchestrator.context import Context
from orchestrator.submission.readable_folders import ReadableFolders
from orchestrator.web.access import Access, TokenBook
from orchestrator.web.answer_cache import AnswerCache
from orchestrator.web.app import make_app
from orchestrator.web.change_bell import ChangeBell
from orchestrator.web.local_token import ensure_token
from orchestrator.web.site import Site
from orchestrator.web.user_names import trusted_proxy

DRAIN_S = 3  #: for requests to end after a signal; pages that follow something don't end by themselves
BACKLOG = 1024


@dataclass(frozen=True)
class Tls:
    """The files of a certificate."""

    certificate: Path
    key: Path


def make_site(context: Context, readable: ReadableFolders) -> Site:
    """Return the site of a data folder. Raises BadSetting, StorageUnusable."""
    database, cache = context.database, AnswerCache(context.database.change_token)
    tokens = TokenBook(cache.tag, lambda: read_tokens(database))
    access = Access(ensure_token(context.settings.data), tokens, trusted_proxy())
    return Site(context, access, cache, ChangeBell(), readable)


def listen(host: str, port: int, *, is_private: bool) -> socket.socket:
    """Listen on an address. Raises BadSetting when it can't, and for others than loopback unless it `is_private`."""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise BadSetting("--host", f"{host!r} is no address, such as 127.0.0.1 or 0.0.0.0") from None
    if not is_loopback and not is_private:
        raise BadSetting(
            "--host",
            f"others reach {host}, and would read tokens on the way: give --tls-certificate and --tls-key, or "
            "--plain-http behind a proxy that encrypts",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadSetting("--port", f"{host} port {port}: {reason}; give another one") from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it for sockets that it makes alone
    return listening


def address_of(listening: socket.socket, *, has_tls: bool) -> str:
    """Return the URL of a server."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def serve(site: Site, listening: socket.socket, tls: Tls | None, announce: Callable[[], None]) -> None:
    """Serve until a signal; `announce` is called once requests are answered.

    Raises BadSetting for files that hold no certificate and its key.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn ends at them, then sends them again
    config = uvicorn.Config(
        make_app(site),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # what a client says of itself is not believed
        timeout_graceful_shutdown=DRAIN_S,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    try:
        config.load()
    except OSError as error:  # also ssl.SSLError
        raise BadSetting("--tls-certificate, --tls-key", f"they can't be used: {error.strerror or error}") from None
    asyncio.run(_serve(uvicorn.Server(config), listening, announce))


async def _serve(server: uvicorn.Server, listening: socket.socket, announce: Callable[[], None]) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        announce()
    await serving
