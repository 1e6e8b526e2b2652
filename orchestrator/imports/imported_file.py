"""What is imported of another program's file: cells of the matrix; and how its JSON is read."""

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard

from db.writes.imports import ImportedCell
from jobs.errors import FileError

WHITESPACE = re.compile(r"\s*")
MAX_FILE_BYTES = 1 << 26
MAX_INTEGER = 2**63 - 1
MAX_WORKLOAD = 2**31 - 1  #: of a number in a workload


@dataclass(frozen=True)
class KnownWorkload:
    """What the command line says of a workload."""

    batch: int | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None

    def as_context(self, in_file: Mapping[str, Any]) -> dict[str, int]:
        """Return a measurement's context: the command line's values, else those that are in the file.

        A value of the file that is no count is left out.
        """
        values = {name: in_file.get(name) if value is None else value for name, value in asdict(self).items()}
        return {name: value for name, value in values.items() if _is_count(value)}


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_WORKLOAD


@dataclass(frozen=True)
class ImportedFile:
    """What is imported of a file."""

    cells: tuple[ImportedCell, ...]
    skipped: tuple[str, ...] = field(default=())  #: a message for each part that is no result


def read_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of a regular file of a size that fits in memory; raises FileError."""
    try:
        expect_regular_file(path)
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileError(str(path), None, "", f"can't be read: {reason}") from error
    if len(content) > max_bytes:
        raise FileError(str(path), None, "", f"is larger than {max_bytes >> 10} KiB: split it")
    return content


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark; raises FileError."""
    try:
        return read_file(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(str(path), None, "", "is not text") from error


def expect_regular_file(path: Path) -> None:
    """Raise FileError for a pipe or a device, which may have no end; OSError where the path can't be read."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise FileError(str(path), None, "", "is no regular file")


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
        value, end = _decode(path, text, begin, line)
        if not isinstance(value, dict):
            raise FileError(str(path), line if objects else None, "", "should be one JSON object")
        objects.append(JsonObject(line, text[begin:end].encode(), value))
    return objects


def parse_json(path: Path, text: str) -> Any:
    """Parse a file that holds one JSON value; raises FileError."""
    begin = WHITESPACE.match(text).end()  # type: ignore[union-attr]
    value, end = _decode(path, text, begin, text.count("\n", 0, begin) + 1)
    if text[end:].strip():
        raise FileError(str(path), text.count("\n", 0, end) + 1, "", "is not JSON: it goes on after the value")
    return value


def _decode(path: Path, text: str, begin: int, line: int) -> tuple[Any, int]:
    """Decode the JSON value that begins in a line; raises FileError."""
    try:
        return DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        raise FileError(str(path), error.lineno, "", f"is not JSON: {error.msg}") from error
    except ValueError as error:
        raise FileError(str(path), line, "", str(error)) from error
    except (RecursionError, MemoryError) as error:
        raise FileError(str(path), line, "", "is too deeply nested, or too large") from error


def _integer(text: str) -> int:
    if len(text) > len(str(-MAX_INTEGER)) or abs(int(text)) > MAX_INTEGER:
        raise ValueError(f"has a number that is too large: {text[:30]}")
    return int(text)


def _number(text: str) -> float:
    if not isfinite(float(text)):
        raise ValueError(f"has a number that is too large: {text[:30]}")
    return float(text)


#: Yields what any database can store: no integer of more than 64 bits, and None for NaN and infinity.
DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_number, parse_constant=lambda _: None)


def digest_of_content(content: bytes, source: str) -> str:
    """Return the digest by which a part of a file is imported only once; `source` is the program that wrote it."""
    return hashlib.sha256(content + source.encode()).hexdigest()


def numbers_at(path: Path, fields: Mapping[str, Any], key: str) -> list[float]:
    """Return the number, or the list of numbers, at a key; raises FileError."""
    value: Any = fields.get(key)
    values: list[Any] = value if isinstance(value, list) else [value]
    if not values or not all(map(is_number, values)):
        raise FileError(
            str(path), None, key, "should be a number, or a list of numbers" if key in fields else "is missing"
        )
    return [float(number) for number in values]


def number_at(path: Path, fields: Mapping[str, Any], key: str) -> float:
    """Return the number at a key; raises FileError."""
    value = fields.get(key)
    if not is_number(value):
        raise FileError(str(path), None, key, "should be a number" if key in fields else "is missing")
    return float(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
