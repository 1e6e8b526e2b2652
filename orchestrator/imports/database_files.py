"""Exports a whole database to a file and imports it from one, compressed or not."""

import gzip
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

from db.connection.engine import Database
from db.writes import transfer
from jobs.errors import BadSetting, FileError
from orchestrator.imports.imported_file import expect_regular_file
from workers.durability import replace_durably

GZIP_LEVEL = 3  #: nearly as small as with the default, in half of the time
MAX_LINE = 1 << 24  #: characters
MAX_EXPANSION = 200  #: compressed rows expand about 20-fold, at most 1000-fold
UNSUSPICIOUS = 1 << 28  #: characters that may come out of any file


def write(database: Database, file: Path) -> int:
    """Export a database to a new file, which appears when it is complete; returns the number of rows."""
    if file.exists():
        raise BadSetting(str(file), "exists already; remove it, or name another file")
    part = file.with_name(f"{file.name}.part")
    row_count = -2  # the first and the last line are no rows
    try:
        part.unlink(missing_ok=True)
        with _open(file, part, "xt") as stream:
            for line in transfer.export_lines(database):
                stream.write(line)
                row_count += 1
        replace_durably(part, file)
    except FileNotFoundError as error:
        raise BadSetting(str(file), "its folder does not exist; create it") from error
    finally:
        part.unlink(missing_ok=True)
    return row_count


def new_archive(data: Path, now: datetime) -> Path:
    """Return a new file for an export in the data folder, named by the time in UTC."""
    folder = data / "archives"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"haloctl-{now:%Y%m%dT%H%M%SZ}.jsonl.gz"


def read(database: Database, file: Path) -> dict[str, int]:
    """Import what `write` wrote; returns the number of rows by table. Raises FileError for a damaged or other file."""
    try:
        expect_regular_file(file)
        with _open(file, file, "rt") as stream:
            return transfer.import_lines(database, str(file), _lines(file, stream))
    except OSError as error:
        raise FileError(str(file), None, "", f"can't be read: {error.strerror or error}") from error


def _lines(file: Path, stream: IO[str]) -> Iterator[str]:
    """Yield the lines of a file; raises FileError for one that would fill the memory, or a file that would do."""
    max_length = max(UNSUSPICIOUS, MAX_EXPANSION * file.stat().st_size)
    number = length = 0
    while line := _read_line(file, stream, number + 1):
        number += 1
        length += len(line)
        if len(line) == MAX_LINE:
            raise FileError(str(file), number, "", f"is longer than {MAX_LINE} characters")
        if length > max_length:
            raise FileError(str(file), number, "", f"the file expands more than {MAX_EXPANSION}-fold")
        yield line


def _read_line(file: Path, stream: IO[str], number: int) -> str:
    try:
        return stream.readline(MAX_LINE)
    except (EOFError, zlib.error, OSError, UnicodeError) as error:
        raise FileError(str(file), number, "", f"is damaged: {error}") from error


def _open(file: Path, path: Path, mode: str) -> IO[str]:
    """Open a text file, compressed if it ends in .gz; line ends are kept."""
    if file.suffix == ".gz":
        return gzip.open(path, mode, compresslevel=GZIP_LEVEL, encoding="utf-8", newline="\n")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8", newline="\n")
