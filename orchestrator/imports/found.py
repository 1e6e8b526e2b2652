"""What files of other programs come to: cells of the matrix, and what of them was left out."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from db.imports import FoundCell
from jobs.errors import FileError

DECODER = json.JSONDecoder()
SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Workload:
    """What is known of it from the command line."""

    batch: int | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None

    def over(self, found: Mapping[str, int | None]) -> dict[str, int]:
        """A measurement's context: what was said goes before what was found."""
        named = {name: value if (value := getattr(self, name)) is not None else found.get(name) for name in FIELDS}
        return {name: value for name, value in named.items() if value is not None}


FIELDS = tuple(Workload.__dataclass_fields__)


@dataclass(frozen=True)
class FoundFile:
    """What a file comes to."""

    cells: tuple[FoundCell, ...]
    left_out: tuple[str, ...] = field(default=())  #: what could not be read as a result, in words


def content_of(path: Path) -> bytes:
    """A file's bytes; raises FileError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(str(path), None, "", f"can't be read: {error.strerror}") from error


@dataclass(frozen=True)
class Entry:
    """One JSON object of a file."""

    line: int  #: that it begins in
    content: bytes
    found: dict[str, Any]


def parsed(path: Path, content: bytes) -> dict[str, Any]:
    """A file that holds one JSON object; raises FileError."""
    found = entries(path, content)
    if len(found) > 1:
        raise FileError(str(path), found[1].line, "", "should be one JSON object, and here is another one")
    return found[0].found


def entries(path: Path, content: bytes) -> list[Entry]:
    """A file's JSON objects, of which there may be several one after another, on lines of their own or not.

    Raises FileError, also where there is none.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise FileError(str(path), None, "", "is not JSON: it is not text") from error
    found, end = list[Entry](), 0
    while (begin := SPACE.match(text, end).end()) < len(text) or not found:  # type: ignore[union-attr]
        line = text.count("\n", 0, begin) + 1
        try:
            value, end = DECODER.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            raise FileError(str(path), error.lineno, "", f"is not JSON: {error.msg}") from error
        if not isinstance(value, dict):
            raise FileError(str(path), line if found else None, "", "should be one JSON object")
        found.append(Entry(line, text[begin:end].encode(), value))
    return found


def digest_of_content(content: bytes, what: str) -> str:
    """Of one part of a file."""
    return hashlib.sha256(content + what.encode()).hexdigest()


def numbers_at(path: Path, found: Mapping[str, Any], key: str) -> list[float]:
    """A number, or a list of them, at a key; raises FileError."""
    value: Any = found.get(key)
    values: list[Any] = value if isinstance(value, list) else [value]
    if not values or not all(_is_number(one) for one in values):
        raise FileError(
            str(path), None, key, "should be a number, or a list of numbers" if key in found else "is missing"
        )
    return [float(one) for one in values]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
