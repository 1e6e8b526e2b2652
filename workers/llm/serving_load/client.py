"""A light client of OpenAI's API: sends token ids, streams, and notes when each token came.

It parses nothing that it need not, so that it takes little of the machine that it measures.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

EVENT = b"data: {"  #: the beginning of a stream's event, but for the last one
END = b"data: [DONE]"
TIMEOUT_S = 600  #: of one request


@dataclass(frozen=True)
class CompletionRequest:
    """A prompt, and how many tokens are wanted after it."""

    prompt: tuple[int, ...]
    new_tokens: int


@dataclass
class RequestTimes:
    """When the tokens of one request came, in seconds of a monotonic clock.

    An event of a stream is one token; servers that are behind send several in one.
    """

    began_s: float
    events_s: list[float] = field(default_factory=list)
    tokens: int = 0  #: that the server says it has generated
    failure: str | None = None

    @property
    def first_token_s(self) -> float:
        """From the request to its first token."""
        return self.events_s[0] - self.began_s

    @property
    def end_s(self) -> float:
        """From the request to its last token."""
        return self.events_s[-1] - self.began_s

    @property
    def gaps_s(self) -> list[float]:
        """From each event to the next."""
        return [later - earlier for earlier, later in pairwise(self.events_s)]


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
        body = json.dumps(self._body(request, stream=True, stream_options={"include_usage": True})).encode()
        try:
            async with self._session.post(
                f"{self._url}/completions", data=body, headers={"Content-Type": "application/json"}
            ) as response:
                if response.status != 200:
                    times.failure = f"HTTP {response.status}: {(await response.text())[:200]}"
                    return times
                await _note_events(response.content, times)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            times.failure = str(problem) or type(problem).__name__
            return times
        if times.tokens != request.new_tokens or not times.events_s:
            times.failure = f"{times.tokens} of {request.new_tokens} tokens came"
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


async def _note_events(content: aiohttp.StreamReader, times: RequestTimes) -> None:
    """Note when events with tokens came, and how many tokens these were, which the last event before the end tells."""
    rest = last = b""
    async for data in content.iter_any():
        now = time.perf_counter()
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(EVENT):
                times.events_s.append(now)
                last = event
            elif event == END:
                times.tokens = _told_tokens(last)
                del times.events_s[-1:]
                return


def _told_tokens(event: bytes) -> int:
    """Return the generated tokens that an event tells, or 0 where it tells none."""
    usage = json.loads(event.removeprefix(b"data: ") or b"{}").get("usage") or {}
    return int(usage.get("completion_tokens", 0))


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    async for line in content:
        if line.startswith(EVENT):
            yield json.loads(line[len("data: ") :])
