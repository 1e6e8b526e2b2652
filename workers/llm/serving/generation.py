"""From a request's choices to their outputs, which the engine's thread hands to the event loop once a step."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from workers.llm.serving.choices import Choice, ChoicePart
from workers.llm.serving.engine import Engine, Outputs
from workers.llm.serving.sequences import FinishReason, Output

Parts = list[tuple[Choice, ChoicePart]]  #: what some choices grew by


class ProgramFailed(Exception):
    """The program could not compute an answer; the message says why."""


class OutputSpreader:
    """Gives each output to its sequence's taker, in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, outputs: Outputs) -> None:
        """Pass on a step's outputs, from the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(_spread, outputs)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            return


def _spread(outputs: Outputs) -> None:
    for sequence, output in outputs:
        sequence.take(output)


async def generate(engine: Engine, choices: Sequence[Choice]) -> AsyncIterator[Parts]:
    """Yield what the choices grow by, as often as there is something new, until all are done.

    Whoever stops asking cancels what is not done. Raises QueueFull or Unavailable at first, ProgramFailed later.
    """
    arrived: asyncio.Queue[tuple[Choice, Output]] = asyncio.Queue()
    for choice in choices:
        choice.sequence.take = _taker(arrived, choice)
    engine.submit([choice.sequence for choice in choices])
    left = len(choices)
    try:
        yield [(choice, choice.begin()) for choice in choices if choice.echo]
        while left:
            outputs = [await arrived.get()]
            while not arrived.empty():
                outputs.append(arrived.get_nowait())
            parts = [(choice, _part(engine, choice, output)) for choice, output in outputs if not choice.is_done]
            left -= sum(part.finish is not None for _, part in parts)
            yield parts
    finally:
        for choice in choices:
            if not choice.is_done:
                engine.cancel(choice.sequence)


async def joined(parts: AsyncIterator[Parts]) -> dict[int, ChoicePart]:
    """Return all of each choice by its index, once it is whole."""
    whole: dict[int, ChoicePart] = {}
    async with aclosing(parts):  # type: ignore[type-var]
        async for news in parts:
            for choice, part in news:
                whole.setdefault(choice.index, ChoicePart()).add(part)
    return whole


def _taker(arrived: "asyncio.Queue[tuple[Choice, Output]]", choice: Choice):  # type: ignore[no-untyped-def]
    return lambda output: arrived.put_nowait((choice, output))


def _part(engine: Engine, choice: Choice, output: Output) -> ChoicePart:
    if output.finish is FinishReason.ERROR:
        raise ProgramFailed(output.message)
    if output.finish is FinishReason.CANCELLED:
        raise ProgramFailed("the server is ending")
    part = choice.add(output)
    if part.finish and output.finish is None:  # a text ended it, which the engine does not know
        engine.cancel(choice.sequence)
    return part
