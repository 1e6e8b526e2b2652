"""A light client of OpenAI's API: sends token ids, streams, and notes when each token came.

It parses nothing that it need not, so that it takes little of the machine that it measures.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

EVENT = b"data: {"  #: the beginning of a stream's event with a token
END = b"data: [DONE]"
TIMEOUT_S = 600  #: of one request


@dataclass(frozen=True)
class CompletionRequest:
    """A prompt, and how many tokens are wanted after it."""

    prompt: tuple[int, ...]
    new_tokens: int


@dataclass
class RequestTimes:
    """When the tokens of one request came, in seconds of a monotonic clock."""

    began_s: float
    tokens_s: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def first_token_s(self) -> float:
        """From the request to its first token."""
        return self.tokens_s[0] - self.began_s

    @property
    def end_s(self) -> float:
        """From the request to its last token."""
        return self.tokens_s[-1] - self.began_s

    @property
    def gaps_s(self) -> list[float]:
        """From each token to the next."""
        return [later - earlier for earlier, later in zip(self.tokens_s, self.tokens_s[1:], strict=False)]


class ServerClient:
    """Sends requests to one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session, self._url, self._model = session, url, model

    def _body(self, request: CompletionRequest, **more: Any) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }

    async def time(self, request: CompletionRequest) -> RequestTimes:
        """Stream an answer; a failure is told, not raised."""
        times = RequestTimes(time.perf_counter())
        body = json.dumps(self._body(request, stream=True)).encode()
        try:
            async with self._session.post(
                f"{self._url}/completions", data=body, headers={"Content-Type": "application/json"}
            ) as response:
                if response.status != 200:
                    times.failure = f"HTTP {response.status}: {(await response.text())[:200]}"
                    return times
                is_whole = await _note_tokens(response.content, times.tokens_s)
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            times.failure = str(problem) or type(problem).__name__
            return times
        if not is_whole or len(times.tokens_s) != request.new_tokens:
            times.failure = f"{len(times.tokens_s)} of {request.new_tokens} tokens came"
        return times

    async def tokens(self, request: CompletionRequest, *, is_streamed: bool) -> list[int]:
        """Return the tokens of an answer. Raises aiohttp.ClientError when the server refuses."""
        body = self._body(request, stream=is_streamed, return_token_ids=True)
        async with self._session.post(f"{self._url}/completions", json=body, raise_for_status=True) as response:
            if not is_streamed:
                return list((await response.json())["choices"][0]["token_ids"])
            return [token async for event in _events(response.content) for token in event["choices"][0]["token_ids"]]

    async def leave_early(self, request: CompletionRequest) -> None:
        """Go away after the first token."""
        body = self._body(request, stream=True)
        async with self._session.post(f"{self._url}/completions", json=body, raise_for_status=True) as response:
            await response.content.readany()
            response.close()

    async def metrics(self) -> str:
        """Return the server's metrics as text."""
        async with self._session.get(f"{self._url.removesuffix('/v1')}/metrics", raise_for_status=True) as response:
            return await response.text()


@asynccontextmanager
async def connect(url: str, model: str, key: str | None = None) -> AsyncIterator[ServerClient]:
    """Open a client with as many connections as it needs; `url` ends in /v1."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:
        yield ServerClient(session, url, model)


async def closed_loop(
    client: ServerClient, requests: Sequence[CompletionRequest], concurrency: int
) -> list[RequestTimes]:
    """Keep this many requests in flight until all are done."""
    rest: Iterator[CompletionRequest] = iter(requests)
    times: list[RequestTimes] = []

    async def work() -> None:
        for request in rest:
            answer = await client.time(request)
            times.append(answer)

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(requests)))))
    return times


async def open_loop(
    client: ServerClient, requests: Sequence[CompletionRequest], arrivals_s: Sequence[float]
) -> list[RequestTimes]:
    """Send each request at its time, in seconds from now, whatever has become of the others."""
    began = time.perf_counter()

    async def at(request: CompletionRequest, arrival_s: float) -> RequestTimes:
        await asyncio.sleep(max(began + arrival_s - time.perf_counter(), 0))
        return await client.time(request)

    return await asyncio.gather(*(at(*pair) for pair in zip(requests, arrivals_s, strict=True)))


async def _note_tokens(content: aiohttp.StreamReader, times_s: list[float]) -> bool:
    """Note a time for each event; return whether the stream came to its end."""
    rest = b""
    async for data in content.iter_any():
        now = time.perf_counter()
        rest += data
        whole, _, rest = rest.rpartition(b"\n\n")
        times_s += [now] * whole.count(EVENT)
        if END in whole:
            return True
    return False


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    async for line in content:
        if line.startswith(EVENT):
            yield json.loads(line[len("data: ") :])
