"""From the bodies of requests to choices, and from what they grow by to the bodies of answers."""

import json
import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workers.llm.serving.choices import Choice, ChoicePart, chat_logprobs, completion_logprobs, usage
from workers.llm.serving.engine import Engine
from workers.llm.serving.openai_types import MAX_CHOICES, ChatBody, CompletionBody, GenerationBody, seed_of_choice
from workers.llm.serving.sequences import SamplingOptions, TokenSequence
from workers.llm.serving.texts import BadPrompt, TextCodec


@dataclass
class Answer:
    """One request with its choices; makes the bodies of its answer."""

    body: GenerationBody
    model: str
    prompts: list[list[int]]
    choices: list[Choice]
    codec: TextCodec

    def __post_init__(self) -> None:
        self._is_chat = isinstance(self.body, ChatBody)
        kind = "chatcmpl" if self._is_chat else "cmpl"
        self._head = {"id": f"{kind}-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.model}
        self._object = "chat.completion" if self._is_chat else "text_completion"

    def whole(self, parts: dict[int, ChoicePart]) -> dict[str, Any]:
        """Return the answer's body, of all parts of each choice."""
        choices = [self._choice(choice, parts[choice.index], "message") for choice in self.choices]
        return {**self._head, "object": self._object, "choices": choices, "usage": self._usage}

    def chunk(self, choice: Choice, part: ChoicePart) -> bytes:
        """Return one event of a stream."""
        kind = "chat.completion.chunk" if self._is_chat else self._object
        return _event({**self._head, "object": kind, "choices": [self._choice(choice, part, "delta")]})

    def last_chunks(self) -> bytes:
        """Return the end of a stream."""
        options = self.body.stream_options
        wants_usage = options is not None and options.include_usage
        kind = "chat.completion.chunk" if self._is_chat else self._object
        last = _event({**self._head, "object": kind, "choices": [], "usage": self._usage}) if wants_usage else b""
        return last + b"data: [DONE]\n\n"

    @property
    def _usage(self) -> dict[str, int]:
        return usage(self.prompts, self.choices)

    def _choice(self, choice: Choice, part: ChoicePart, kind: str) -> dict[str, Any]:
        text = {kind: {"role": "assistant", "content": part.text}} if self._is_chat else {"text": part.text}
        form = chat_logprobs if self._is_chat else completion_logprobs
        return {
            "index": choice.index,
            **text,
            "logprobs": form(part, self.codec.name) if choice.wants_logprobs else None,
            "finish_reason": part.finish,
            **({"token_ids": part.tokens} if self.body.return_token_ids else {}),
        }


def completion_answer(body: CompletionBody, engine: Engine, codec: TextCodec, model: str) -> Answer:
    """Return the choices for prompts. Raises BadPrompt or Refused."""
    prompts = [codec.encode(prompt) for prompt in body.prompts]
    new_tokens = 16 if body.max_tokens is None else body.max_tokens
    if not new_tokens and not body.echo:
        raise BadPrompt("max_tokens: 0 makes sense with echo alone")
    is_scored = body.echo and body.logprobs is not None
    if is_scored and body.logprobs and body.logprobs > 1:
        raise BadPrompt("logprobs: with echo at most the likeliest token is told: give 0 or 1")
    choices = _choices(body, engine, codec, prompts, new_tokens, body.logprobs, is_scored=is_scored)
    if body.echo:
        for choice in choices:
            choice.echo = codec.decode(choice.sequence.prompt)
    return Answer(body, model, prompts, choices, codec)


def chat_answer(body: ChatBody, engine: Engine, codec: TextCodec, model: str) -> Answer:
    """Return the choices for a conversation. Raises BadPrompt or Refused."""
    prompt = codec.encode_chat([message.model_dump(exclude_unset=True) for message in body.messages])
    room = engine.capacity.length - len(prompt)
    new_tokens = body.max_completion_tokens or body.max_tokens or max(room, 1)
    logprobs = body.top_logprobs if body.logprobs else None
    return Answer(body, model, [prompt], _choices(body, engine, codec, [prompt], new_tokens, logprobs), codec)


def _choices(
    body: GenerationBody,
    engine: Engine,
    codec: TextCodec,
    prompts: Sequence[list[int]],
    new_tokens: int,
    logprobs: int | None,
    *,
    is_scored: bool = False,
) -> list[Choice]:
    if len(prompts) * body.n > MAX_CHOICES:
        raise BadPrompt(f"{len(prompts)} prompts times n {body.n} are more than the {MAX_CHOICES} answers of a request")
    stop_tokens = frozenset(body.stop_token_ids) | (frozenset() if body.ignore_eos else codec.stop_tokens)
    seed = secrets.randbits(63) if body.seed is None else body.seed
    choices = []
    for index in range(len(prompts) * body.n):
        prompt = prompts[index // body.n]
        options = SamplingOptions(
            body.temperature, max(body.top_k, 0), body.top_p, seed_of_choice(seed, index), logprobs
        )
        sequence = TokenSequence(prompt, new_tokens, options, stop_tokens, is_scored and len(prompt) > 1)
        engine.check(sequence)
        choices.append(Choice(index, sequence, codec.stream(prompt, body.stops), wants_logprobs=logprobs is not None))
    return choices


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
