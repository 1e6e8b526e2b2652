"""Between texts and tokens: encoding prompts and conversations, and decoding tokens as they come."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers.decoders import DecodeStream

from workers.llm.command_line import BadInput
from workers.llm.models.model_source import LocalModel, load_tokenizer

CONTEXT_TOKENS = 8  #: of a prompt's end: how the first tokens of an answer read depends on what is before them


class BadPrompt(ValueError):
    """A prompt or conversation that can't be encoded; the message says why."""


class TextCodec:
    """A model's tokenizer, chat template and end tokens."""

    def __init__(self, model: LocalModel) -> None:
        self._tokenizer = load_tokenizer(model)
        if not hasattr(self._tokenizer, "backend_tokenizer"):
            raise BadInput("this model's tokenizer has no tokenizer.json, which serving needs")
        self._backend = self._tokenizer.backend_tokenizer
        self.vocab_size = int(model.config.vocab_size)
        self.stop_tokens = end_tokens(model)

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the tokens of a prompt, with those that the tokenizer puts before a text. Raises BadPrompt."""
        tokens = self._backend.encode(prompt).ids if isinstance(prompt, str) else list(prompt)
        largest = max(tokens, default=0)
        if largest >= self.vocab_size:
            raise BadPrompt(f"token {largest} does not exist: the vocabulary has {self.vocab_size}")
        return tokens

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return the tokens of a conversation in the form of the model's chat template. Raises BadPrompt."""
        if not self._tokenizer.chat_template:
            raise BadPrompt("this model has no chat template: use /v1/completions")
        try:
            text = self._tokenizer.apply_chat_template(
                [_with_text(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except BadPrompt:
            raise
        except Exception as problem:  # a template may raise anything
            raise BadPrompt(f"the model's chat template refuses these messages: {problem}") from None
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self._backend.decode(list(tokens), skip_special_tokens=True))

    def name(self, token: int) -> str:
        """Return the text of one token by itself, special ones included."""
        return str(self._backend.decode([token], skip_special_tokens=False))

    def stream(self, prompt: Sequence[int], stops: Sequence[str]) -> "TextStream":
        """Return what makes text of the tokens after a prompt."""
        return TextStream(self._backend, prompt, stops)


class TextStream:
    """Makes text of tokens as they come: never half a character, nor the beginning of a text that ends the answer."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._stream = DecodeStream(ids=list(prompt[-CONTEXT_TOKENS:]), skip_special_tokens=True)
        self._held = ""
        self.is_stopped = False  #: one of the texts has come that end the answer

    def add(self, token: int) -> str:
        """Return the text that is certain after one more token."""
        self._held += self._stream.step(self._tokenizer, token) or ""
        ends = [self._held.index(stop) for stop in self._stops if stop in self._held]
        if ends:
            self.is_stopped = True
            text, self._held = self._held[: min(ends)], ""
            return text
        return self._release(self._held_back())

    def end(self) -> str:
        """Return the text that was held back."""
        return self._release(0)

    def _held_back(self) -> int:
        """Return how many characters at the end may begin a text that ends the answer."""
        longest = [
            length for stop in self._stops for length in range(1, len(stop)) if self._held.endswith(stop[:length])
        ]
        return max(longest, default=0)

    def _release(self, held: int) -> str:
        end = len(self._held) - held
        text, self._held = self._held[:end], self._held[end:]
        return text


def end_tokens(model: LocalModel) -> frozenset[int]:
    """Return the tokens that end a text, from the model's generation_config.json or else its config."""
    path = model.folder / "generation_config.json" if model.folder else Path()
    value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    value = getattr(model.config, "eos_token_id", None) if value is None else value
    return frozenset(value if isinstance(value, list) else [] if value is None else [value])


def _with_text(message: dict[str, Any]) -> dict[str, Any]:
    """Join a content that came in parts, all of which must be text."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in content):
        raise BadPrompt("messages can hold text alone")
    return message | {"content": "".join(part["text"] for part in content)}
