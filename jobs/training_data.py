"""Files of training examples: plain text, or a JSON object in each line (.jsonl).

An object has a text, `{"text": "..."}`, or a conversation, `{"messages": [{"role": "user", "content": "..."}, ...]}`.
Stage programs import this module, so it uses only the standard library.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JSON_LINES = ".jsonl"
ROLES = ("system", "user", "assistant", "tool")
MAX_LINE_BYTES = 16 << 20

Message = dict[str, str]


class BadTrainingData(ValueError):
    """A file of examples can't be read; the message names the file, and the line and column where it can."""


@dataclass(frozen=True)
class Example:
    """What one sequence is made of: a text, or the messages of a conversation."""

    text: str = ""
    messages: Sequence[Message] = ()


def read_examples(file: Path) -> Iterator[Example]:
    """Yield a file's examples; a file that is not .jsonl is a single one. Raises BadTrainingData and OSError."""
    count = 0
    for example in _json_lines(file) if file.suffix == JSON_LINES else _whole(file):
        count += 1
        yield example
    if not count:
        raise BadTrainingData(f"{file} has no examples")


def _whole(file: Path) -> Iterator[Example]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadTrainingData(f"{file} is not UTF-8: byte {error.start}") from None
    if text.strip():
        yield Example(text)


def _json_lines(file: Path) -> Iterator[Example]:
    with file.open("rb") as lines:
        number = 0
        while line := lines.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise BadTrainingData(f"{file}:{number}: is longer than {MAX_LINE_BYTES >> 20} MiB: split the example")
            if line.strip():
                yield _example(line, f"{file}:{number}")


def _example(line: bytes, place: str) -> Example:
    try:
        value = json.loads(line.rstrip(b"\r\n").decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadTrainingData(f"{place}:{error.start + 1}: is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadTrainingData(f"{place}:{error.colno}: is not JSON: {error.msg}") from None
    except RecursionError:
        raise BadTrainingData(f"{place}: is nested too deeply") from None
    if not isinstance(value, dict) or len({"text", "messages"} & value.keys()) != 1:
        raise BadTrainingData(f"{place}: should be an object with either `text` or `messages`")
    return Example(_text(value["text"], place)) if "text" in value else Example(messages=_messages(value, place))


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadTrainingData(f"{place}: text should be a text that is not empty")
    return value


def _messages(value: dict[str, Any], place: str) -> list[Message]:
    messages = value["messages"]
    if not isinstance(messages, list) or not messages:
        raise BadTrainingData(f"{place}: messages should be a list that is not empty")
    for index, message in enumerate(messages):
        at = f"{place}: messages[{index}]"
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            raise BadTrainingData(f"{at} should be an object with `role` and `content`")
        if message["role"] not in ROLES:
            raise BadTrainingData(f"{at}.role should be one of {', '.join(ROLES)}")
        if not isinstance(message["content"], str):
            raise BadTrainingData(f"{at}.content should be a text")
    return messages
