"""What survives a power cut: files and folders that were written to the disk, and not only to the kernel's memory.

A file is there for good when its content is synced before it gets its name, and its folder afterwards (fsync(2)).
"""

import ctypes
import errno
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP})  #: by file systems that have no folders to write back


class Disk:
    """Writes files and folders back to the disk; raises OSError where that fails."""

    def sync_file(self, file: Path) -> None:
        """Write back a file's content."""
        _sync(file)

    def sync_folder(self, folder: Path) -> None:
        """Write back the names in a folder."""
        try:
            _sync(folder)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise

    def sync_file_system(self, path: Path) -> None:
        """Write back all of the file system that a path is on, which takes less than each of its many files."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        finally:
            os.close(descriptor)


DISK = Disk()


@cache
def boot_id() -> str:
    """Return an id that this machine has until it is started again."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def replace_durably(part: Path, file: Path, disk: Disk = DISK) -> None:
    """Rename a complete file over another, so that after a power cut there is one of the two, whole."""
    disk.sync_file(part)
    part.replace(file)
    disk.sync_folder(file.parent)


def write_atomically(file: Path, text: str) -> None:
    """Write a file so that readers and other writers never see a part of it; a power cut may undo that."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{uuid4().hex}.part")
    try:
        part.write_text(text)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
