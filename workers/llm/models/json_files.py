"""JSON of a model's folder, which anybody may have written: read within limits, and refused with the reason."""

import json
import stat
from pathlib import Path
from typing import Any

from workers.llm.command_line import BadInput

MAX_BYTES = 64 << 20  #: of a file; the largest tokenizers and indexes have some 30 MiB
MAX_DEPTH = 32  #: of lists and objects in each other
MAX_NUMBER = 1 << 53  #: the largest whole number that every JSON parser reads alike


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises BadInput for anything else."""
    expect_small_file(path)
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None
    try:
        return parse_json_object(text)
    except ValueError as problem:
        raise BadInput(f"{path} is not valid JSON: {problem}") from None


def expect_small_file(path: Path) -> None:
    """Raise BadInput for a file that is no regular one, or that is too large to be read as a whole."""
    try:
        facts = path.stat()
    except (OSError, ValueError) as problem:
        raise BadInput(f"{path} cannot be read: {getattr(problem, 'strerror', problem)}") from None
    if not stat.S_ISREG(facts.st_mode):
        raise BadInput(f"{path} is not a file")
    if facts.st_size > MAX_BYTES:
        raise BadInput(f"{path} is larger than {MAX_BYTES >> 20} MiB")


def parse_json_object(text: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError, also for numbers and nesting that other programs can't handle."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    _expect_plain(value)
    return value


def _expect_plain(value: Any) -> None:
    """Raise ValueError for deep nesting, and for numbers that are not finite or not exact everywhere."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                inner += part.values()
            elif isinstance(part, list):
                inner += part
            elif isinstance(part, int | float) and not abs(part) <= MAX_NUMBER:  # NaN compares as false
                raise ValueError(
                    f"it has the number {str(part)[:40]}, and only finite ones up to {MAX_NUMBER} are used"
                )
        level = inner
    if level:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
