"""What the client of a load counts and times, from servers that send each token by itself and from others."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from workers.llm.serving_load.client import CompletionRequest, RequestTimes, connect

ROOT = Path(__file__).parents[4]
TOKEN, TWO_TOKENS = {"choices": [{"text": "a"}]}, {"choices": [{"text": "ab"}]}
USAGE = {"choices": [], "usage": {"completion_tokens": 4}}


def times_of(events: Sequence[object], *, is_whole: bool = True) -> RequestTimes:
    """Return what the client notes of a stream with these events."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if is_whole:
            await response.write(b"data: [DONE]\n\n")
        return response

    async def run() -> RequestTimes:
        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        async with TestServer(app) as server, connect(str(server.make_url("/v1")), "m") as client:
            return await client.time(CompletionRequest((1, 2), 4))

    return asyncio.run(run())


@pytest.mark.parametrize("events", [[TOKEN] * 4, [TOKEN, TWO_TOKENS, TOKEN]], ids=["each", "two at once"])
def test_tokens_are_counted_however_many_come_in_an_event(events: list[object]) -> None:
    times = times_of([*events, USAGE])
    assert times.failure is None
    assert len(times.gaps_s) == len(events) - 1
    assert 0 < times.first_token_s <= times.end_s


@pytest.mark.parametrize(
    ("events", "is_whole", "tokens"),
    [
        ([TOKEN] * 4, False, 0),
        ([TOKEN, {"choices": [], "usage": {"completion_tokens": 1}}], True, 1),
        ([TOKEN] * 4, True, 0),
        ([USAGE], True, 4),
        ([], True, 0),
        ([{"error": {"message": "the program failed"}}], False, 0),
    ],
    ids=["cut off", "too few", "untold", "no token came", "empty", "error"],
)
def test_an_answer_that_is_not_what_was_asked_for_is_a_failure(
    events: list[object], is_whole: bool, tokens: int
) -> None:
    assert times_of(events, is_whole=is_whole).failure == f"{tokens} of 4 tokens came"


def test_a_toolchain_without_what_serves_is_told_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ModuleNotFoundError('No module named aiohttp', name='aiohttp')")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "workers.llm.programs.measure_serving", "--model=tiny-llama", "--program=x"),
            *("--module=x", "--device=local-task", "--prompt-tokens=8", "--new-tokens=8", "--concurrency=1"),
        ],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "error: serving needs the package aiohttp: pip install 'haloctl[serve]'\n"
