"""Parts of a log that is still being written, as text."""

import codecs
from pathlib import Path

from jobs.task import LogChunk

PART_BYTES = 64 << 10


def read_part(attempt: str, log: Path, offset: int) -> tuple[LogChunk, int]:
    """Return at most `PART_BYTES` of a log from `offset` on, and the offset of the next part.

    An incomplete character at the end is left to the next part; bytes that are no text become U+FFFD.
    """
    try:
        with log.open("rb") as file:
            file.seek(offset)
            content = file.read(PART_BYTES)
    except FileNotFoundError:
        content = b""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content)
    incomplete, _ = decoder.getstate()
    return LogChunk(attempt, offset, text), offset + len(content) - len(incomplete)
