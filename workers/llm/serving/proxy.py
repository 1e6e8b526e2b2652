"""One address for several replicas: each request goes to the one that has the fewest, byte for byte."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from workers.llm.serving.connection_limits import MAX_BODY_BYTES
from workers.llm.serving.replicas import Replica

HOP_BY_HOP = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)  #: headers that are about one connection: https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
NO_REPLICA = "no replica answers now; those that ended are being started again"


class ReplicaProxy:
    """Passes requests on."""

    def __init__(self, replicas: Sequence[Replica], client: aiohttp.ClientSession) -> None:
        self._replicas, self._client = replicas, client

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request with a replica's answer, or with 503 where it has none."""
        replica = least_loaded(self._replicas)
        if replica is None:
            return _unavailable(NO_REPLICA)
        replica.in_flight += 1
        try:
            return await self._pass_on(request, str(replica.url).removesuffix("/v1"))
        finally:
            replica.in_flight -= 1

    async def _pass_on(self, request: web.Request, url: str) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        body = await request.read()
        answer: web.StreamResponse | None = None
        try:
            async with self._client.request(
                request.method, f"{url}{request.rel_url}", headers=headers, data=body
            ) as response:
                kept = {name: value for name, value in response.headers.items() if name.lower() not in HOP_BY_HOP}
                answer = web.StreamResponse(status=response.status, headers=kept)
                await answer.prepare(request)
                async for data in response.content.iter_any():
                    await answer.write(data)
            await answer.write_eof()
        except (aiohttp.ClientError, OSError) as problem:
            if answer is None:
                return _unavailable(f"the replica ended: {problem}")
            if request.transport is not None:
                request.transport.abort()  # a stream that ends in order would look whole
        return answer

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200 while a replica answers."""
        return web.Response(status=200 if least_loaded(self._replicas) else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer with the metrics of all replicas, which have the label `replica`."""
        lines = []
        for replica in self._replicas:
            lines.append(f'haloctl:replica_up{{replica="{replica.number}"}} {int(replica.url is not None)}')
            lines.append(f'haloctl:replica_starts_total{{replica="{replica.number}"}} {replica.starts}')
            if replica.url:
                lines += await self._metrics_of(replica, request.headers.get("Authorization"))
        return web.Response(text="\n".join(lines) + "\n")

    async def _metrics_of(self, replica: Replica, key: str | None) -> list[str]:
        url = f"{str(replica.url).removesuffix('/v1')}/metrics"
        headers = {"Authorization": key} if key else {}
        try:
            async with self._client.get(url, headers=headers, raise_for_status=True) as response:
                text = await response.text()
        except (aiohttp.ClientError, OSError):
            return []
        return [
            f"{sample.name}{_labels({**sample.labels, 'replica': str(replica.number)})} {sample.value}"
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]


def least_loaded(replicas: Sequence[Replica]) -> Replica | None:
    """Return the replica that answers and has the fewest requests in flight."""
    return min((replica for replica in replicas if replica.url), key=lambda replica: replica.in_flight, default=None)


async def run_proxy(replicas: Sequence[Replica], listening: socket.socket, ended: asyncio.Event) -> None:
    """Keep replicas running and pass requests on to them, until the event is set."""
    keeping = [asyncio.create_task(replica.keep_running()) for replica in replicas]
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as client:
        proxy = ReplicaProxy(replicas, client)
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", proxy.health)
        app.router.add_get("/metrics", proxy.metrics)
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        site = web.SockSite(runner, listening)
        await site.start()
        await ended.wait()
        await site.stop()
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        await asyncio.gather(*(replica.end() for replica in replicas))
        with suppress(Exception):
            await runner.cleanup()


def _unavailable(message: str) -> web.Response:
    error = {"message": message, "type": "server_error", "param": None, "code": 503}
    return web.json_response({"error": error}, status=503, headers={"Retry-After": "1"})


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
