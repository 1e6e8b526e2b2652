"""Files that a whole database is exported to and imported from, compressed or not."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from db import transfer
from db.engine import Database
from jobs.errors import BadSetting, FileError

QUICKLY = 3  #: of gzip's levels: nearly as small as with its default, in half of the time


def write(database: Database, file: Path) -> int:
    """Export; returns how many rows. The file is there when it is complete, and not before."""
    if file.exists():
        raise BadSetting(str(file), "there is such a file already; remove it, or name another")
    part = file.with_name(f"{file.name}.part")
    count = -2  # the first and the last line are no rows
    try:
        with _opened(file, part, "wt") as stream:
            for line in transfer.lines_of(database):
                stream.write(line)
                count += 1
        part.rename(file)
    except FileNotFoundError as error:
        raise BadSetting(str(file), "its folder does not exist") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def read(database: Database, file: Path) -> dict[str, int]:
    """Import; returns how many rows of each table. Raises FileError where the file is not what `write` wrote."""
    try:
        with _opened(file, file, "rt") as stream:
            return transfer.take_in(database, str(file), _lines(stream))
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise FileError(str(file), None, "", f"is damaged: {error}") from error
    except OSError as error:
        raise FileError(str(file), None, "", f"can't be read: {error.strerror or error}") from error


def _opened(file: Path, path: Path, mode: str) -> IO[str]:
    """For text; lines end as they are written."""
    if file.suffix == ".gz":
        return gzip.open(path, mode, compresslevel=QUICKLY, encoding="utf-8", newline="\n")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8", newline="\n")


def _lines(stream: IO[str]) -> Iterator[str]:
    yield from stream
