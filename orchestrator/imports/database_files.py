"""Exports a whole database to a file and imports it from one, compressed or not."""

import gzip
import zlib
from pathlib import Path
from typing import IO

from db.connection.engine import Database
from db.writes import transfer
from jobs.errors import BadSetting, FileError

GZIP_LEVEL = 3  #: nearly as small as with the default, in half of the time


def write(database: Database, file: Path) -> int:
    """Export a database to a new file, which appears when it is complete; returns the number of rows."""
    if file.exists():
        raise BadSetting(str(file), "exists already; remove it, or name another file")
    part = file.with_name(f"{file.name}.part")
    row_count = -2  # the first and the last line are no rows
    try:
        with _open(file, part, "wt") as stream:
            for line in transfer.export_lines(database):
                stream.write(line)
                row_count += 1
        part.rename(file)
    except FileNotFoundError as error:
        raise BadSetting(str(file), "its folder does not exist; create it") from error
    finally:
        part.unlink(missing_ok=True)
    return row_count


def read(database: Database, file: Path) -> dict[str, int]:
    """Import what `write` wrote; returns the number of rows by table. Raises FileError for a damaged or other file."""
    try:
        with _open(file, file, "rt") as stream:
            return transfer.import_lines(database, str(file), iter(stream))
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise FileError(str(file), None, "", f"is damaged: {error}") from error
    except OSError as error:
        raise FileError(str(file), None, "", f"can't be read: {error.strerror or error}") from error


def _open(file: Path, path: Path, mode: str) -> IO[str]:
    """Open a text file, compressed if it ends in .gz; line ends are kept."""
    if file.suffix == ".gz":
        return gzip.open(path, mode, compresslevel=GZIP_LEVEL, encoding="utf-8", newline="\n")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8", newline="\n")
