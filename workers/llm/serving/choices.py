"""One answer to one prompt while it grows, in the forms of OpenAI's API."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.llm.serving.sequences import FinishReason, Output, TokenLogprob, TokenSequence
from workers.llm.serving.texts import TextStream

TokenName = Callable[[int], str]


@dataclass
class ChoicePart:
    """What one step, or all of them, added to an answer."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)  #: of these tokens, where they are wanted
    offsets: list[int] = field(default_factory=list)  #: of each token's text in the whole answer
    finish: str | None = None

    def add(self, later: "ChoicePart") -> None:
        """Append what came later."""
        self.text += later.text
        self.tokens += later.tokens
        self.logprobs += later.logprobs
        self.offsets += later.offsets
        self.finish = later.finish


@dataclass(eq=False)
class Choice:
    """An answer, its sequence, and its text so far."""

    index: int
    sequence: TokenSequence
    stream: TextStream
    echo: str = ""  #: the prompt's text, if the answer begins with it
    wants_logprobs: bool = False
    is_done: bool = False
    text_length: int = 0
    generated: int = 0  #: tokens that its caller was told

    def begin(self) -> ChoicePart:
        """Return what an answer begins with, whatever the program says: the prompt, if it is wanted."""
        part = ChoicePart(text=self.echo)
        self.text_length = len(self.echo)
        return part

    def add(self, output: Output) -> ChoicePart:
        """Take one output of the engine; the answer is over when the part says why."""
        if output.prompt_logprobs:
            return self._end(self._scored_prompt(output), output.finish)
        part = ChoicePart()
        if output.token is not None:
            part.tokens, part.offsets = [output.token], [self.text_length]
            self.generated += 1
            part.logprobs = [output.logprob] if self.wants_logprobs else []
            if output.finish is not FinishReason.STOP:
                part.text = self.stream.add(output.token)
        finish = FinishReason.STOP if self.stream.is_stopped else output.finish
        return self._end(part, finish)

    def _end(self, part: ChoicePart, finish: FinishReason | None) -> ChoicePart:
        if finish is not None:
            part.text += self.stream.end()
            part.finish, self.is_done = finish.value, True
        self.text_length += len(part.text)
        return part

    def _scored_prompt(self, output: Output) -> ChoicePart:
        """Return the prompt's tokens with their log probabilities; the first has none."""
        prompt = list(self.sequence.prompt)
        return ChoicePart(tokens=prompt, logprobs=[None, *output.prompt_logprobs], offsets=[0] * len(prompt))


def completion_logprobs(part: ChoicePart, name: TokenName) -> dict[str, Any]:
    """Return log probabilities in the form of completions."""
    return {
        "tokens": [name(token) for token in part.tokens],
        "token_logprobs": [None if known is None else known.logprob for known in part.logprobs],
        "top_logprobs": [
            None if known is None else _likeliest(token, known, name)
            for token, known in zip(part.tokens, part.logprobs, strict=True)
        ],
        "text_offset": part.offsets,
    }


def _likeliest(token: int, known: TokenLogprob, name: TokenName) -> dict[str, float]:
    """Return the likeliest tokens and the chosen one; of tokens with the same text the likeliest."""
    named: dict[str, float] = {}
    for other, logprob in (*known.top, (token, known.logprob)):
        named.setdefault(name(other), logprob)
    return named


def chat_logprobs(part: ChoicePart, name: TokenName) -> dict[str, Any]:
    """Return log probabilities in the form of chat completions."""

    def describe(token: int, logprob: float) -> dict[str, Any]:
        text = name(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {
        "content": [
            {
                **describe(token, known.logprob),
                "top_logprobs": [describe(other, logprob) for other, logprob in known.top],
            }
            for token, known in zip(part.tokens, part.logprobs, strict=True)
            if known is not None
        ]
    }


def usage(prompts: Sequence[Sequence[int]], choices: Sequence[Choice]) -> dict[str, int]:
    """Return the number of tokens of a request: each prompt counts once, however many answers it got."""
    prompt_tokens = sum(map(len, prompts))
    completion_tokens = sum(choice.generated for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
