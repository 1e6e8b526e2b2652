"""What is imported of another program's file: cells of the matrix; and how its JSON is read."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from db.writes.imports import ImportedCell
from jobs.errors import FileError

DECODER = json.JSONDecoder()
WHITESPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class KnownWorkload:
    """What the command line says of a workload."""

    batch: int | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None

    def as_context(self, in_file: Mapping[str, int | None]) -> dict[str, int]:
        """Return a measurement's context: the command line's values, else those that are in the file."""
        values = {name: in_file.get(name) if value is None else value for name, value in asdict(self).items()}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class ImportedFile:
    """What is imported of a file."""

    cells: tuple[ImportedCell, ...]
    skipped: tuple[str, ...] = field(default=())  #: a message for each part that is no result


def read_file(path: Path) -> bytes:
    """Return a file's bytes; raises FileError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(str(path), None, "", f"can't be read: {error.strerror}") from error


@dataclass(frozen=True)
class JsonObject:
    """One JSON object of a file."""

    line: int  #: that it begins in
    content: bytes
    fields: dict[str, Any]


def parse_object(path: Path, content: bytes) -> dict[str, Any]:
    """Parse a file that holds one JSON object; raises FileError."""
    objects = parse_objects(path, content)
    if len(objects) > 1:
        raise FileError(str(path), objects[1].line, "", "should not be there: the file should hold one JSON object")
    return objects[0].fields


def parse_objects(path: Path, content: bytes) -> list[JsonObject]:
    """Parse a file's JSON objects, of which several may follow each other, on lines of their own or not.

    Raises FileError, also where there is none.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise FileError(str(path), None, "", "is not JSON: it is not text") from error
    objects, end = list[JsonObject](), 0
    while (begin := WHITESPACE.match(text, end).end()) < len(text) or not objects:  # type: ignore[union-attr]
        line = text.count("\n", 0, begin) + 1
        try:
            value, end = DECODER.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            raise FileError(str(path), error.lineno, "", f"is not JSON: {error.msg}") from error
        if not isinstance(value, dict):
            raise FileError(str(path), line if objects else None, "", "should be one JSON object")
        objects.append(JsonObject(line, text[begin:end].encode(), value))
    return objects


def digest_of_content(content: bytes, source: str) -> str:
    """Return the digest by which a part of a file is imported only once; `source` is the program that wrote it."""
    return hashlib.sha256(content + source.encode()).hexdigest()


def numbers_at(path: Path, fields: Mapping[str, Any], key: str) -> list[float]:
    """Return the number, or the list of numbers, at a key; raises FileError."""
    value: Any = fields.get(key)
    values: list[Any] = value if isinstance(value, list) else [value]
    if not values or not all(map(_is_number, values)):
        raise FileError(
            str(path), None, key, "should be a number, or a list of numbers" if key in fields else "is missing"
        )
    return [float(number) for number in values]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
