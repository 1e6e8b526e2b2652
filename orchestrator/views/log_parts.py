"""Parts of an attempt's log by their offsets, for readers who come back for more: a log may have gigabytes."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from db.reads import reports
from db.reads.reports import AttemptRow
from jobs.errors import ArtifactLost, DatabaseReadOnly, StorageUnusable
from orchestrator.context import Context
from workers.attempts.folders import log_path

FETCH_REQUEST_S = 30.0  #: how long a head fetches a log after the last request
MAX_CHUNKS = 64  #: read at a time


@dataclass(frozen=True)
class LogPart:
    """Bytes of a log, and the offset that follows them."""

    data: bytes
    end: int


def log_file(context: Context, attempt: AttemptRow) -> Path | None:
    """Return a file of this machine with an attempt's log, as far as it is written; None if there is none."""
    local = log_path(context.settings.data, attempt.id)
    if local.exists():
        return local
    log = next((artifact for artifact in attempt.artifacts if artifact.kind == "log"), None)
    if log is not None:
        with suppress(ArtifactLost, StorageUnusable):
            return context.artifacts.local(log)
    return None


def read_part(context: Context, attempt: AttemptRow, begin: int, max_bytes: int) -> LogPart:
    """Return what a log has from an offset on; a negative offset counts from the end. Nothing: it has no more so far.

    Where it can't be read on this machine, a running attempt's log is what a head has fetched, and an ended one's is
    the tail that was stored with its failure.
    """
    file = log_file(context, attempt)
    if file is not None:
        return _of_file(file, begin, max_bytes)
    if attempt.ended_at is None:
        return _of_chunks(context, attempt, max(begin, 0), max_bytes)
    tail = (attempt.failure.log_tail if attempt.failure else "").encode()
    begin = max(len(tail) + begin, 0) if begin < 0 else begin
    data = tail[begin : begin + max_bytes]
    return LogPart(data, begin + len(data))


def request_fetching(context: Context, attempt: AttemptRow) -> None:
    """Have the head fetch a running attempt's log for some time, unless this machine has its file."""
    if attempt.ended_at is None and log_file(context, attempt) is None:
        with suppress(DatabaseReadOnly):
            context.store.follow_log(attempt.id, FETCH_REQUEST_S)


def _of_file(file: Path, begin: int, max_bytes: int) -> LogPart:
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        begin = opened.seek(max(size + begin, 0) if begin < 0 else min(begin, size))
        data = opened.read(max_bytes)
    return LogPart(data, begin + len(data))


def _of_chunks(context: Context, attempt: AttemptRow, begin: int, max_bytes: int) -> LogPart:
    """Return whole chunks, at least one; a reader's next offset is where a chunk begins."""
    data, end = bytearray(), begin
    for chunk in reports.log_chunks(context.database, attempt.id, begin - 1, limit=MAX_CHUNKS):
        text = chunk.text.encode()
        data += text
        end = chunk.offset + len(text)
        if len(data) >= max_bytes:
            break
    return LogPart(bytes(data), end)
