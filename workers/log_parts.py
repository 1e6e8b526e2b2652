"""A part of a log that is still written, as text."""

import codecs
from pathlib import Path

from jobs.task import LogChunk

PART_BYTES = 64 << 10


def read_part(attempt: str, log: Path, offset: int) -> tuple[LogChunk, int]:
    """What is in the log from `offset` on, at most `PART_BYTES`, and where the next part begins.

    A character that is not written whole yet is left to the next part; what is no text is shown as U+FFFD.
    """
    try:
        with log.open("rb") as file:
            file.seek(offset)
            found = file.read(PART_BYTES)
    except FileNotFoundError:
        found = b""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(found)
    begun, _ = decoder.getstate()
    return LogChunk(attempt, offset, text), offset + len(found) - len(begun)
