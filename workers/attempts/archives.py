"""Archives of what commands leave beside outputs/: equal files make equal bytes, and links are not followed."""

import gzip
import os
import stat
import tarfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from jobs.stages.base import Archive

COMPRESSION_LEVEL = 6  #: about 50 MB of text a second


def pack(folder: Path, archive: Archive, target: Path) -> str | None:
    """Write the archive of a folder in an attempt's folder; return why there is none."""
    try:
        handle = os.open(folder / archive.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no folder {archive.folder}"
    size_bytes = 0
    target.unlink(missing_ok=True)
    try:
        with (
            target.open("xb") as raw,
            gzip.GzipFile("", "wb", COMPRESSION_LEVEL, raw, mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name in _names(handle, archive.patterns):
                size_bytes += _add(tar, name, handle, archive.max_bytes - size_bytes)
    except _TooLarge:
        target.unlink()
        return f"its files have more than {archive.max_bytes >> 20} MiB"
    finally:
        os.close(handle)
    return None


class _TooLarge(Exception):
    """The files have more bytes than the archive may."""


def _names(handle: int, patterns: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of the regular files that match, in their order."""
    for name in sorted(os.listdir(handle)):
        is_file = stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
        if is_file and any(fnmatchcase(name, pattern) for pattern in patterns):
            yield name


def _add(tar: tarfile.TarFile, name: str, handle: int, max_bytes: int) -> int:
    """Add a file and return its size in bytes. Raises _TooLarge."""
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=handle), "rb") as file:
        member = tarfile.TarInfo(name)
        member.size = os.fstat(file.fileno()).st_size
        if member.size > max_bytes:
            raise _TooLarge
        tar.addfile(member, file)
        return member.size
