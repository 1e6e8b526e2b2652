"""Reading and hashing of files block by block, whatever their size."""

import errno
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

BLOCK_BYTES = 8 << 20


def sha256_of(file: Path) -> str:
    """Return the sha256 of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


#: file systems between which, or kernels in which, `copy_file_range` does not work
_NO_COPY_IN_KERNEL = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}


def try_hard_link(file: Path, destination: Path) -> bool:
    """Make a hard link, and return whether that was possible; raises FileExistsError.

    It is not to another file system, to one without hard links, or for a file of another user.
    """
    try:
        destination.hardlink_to(file)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True


def copy_file(source: Path, destination: Path) -> None:
    """Copy a file to a new one; its blocks are shared, not copied, where the file system can (XFS, Btrfs)."""
    with source.open("rb") as content, destination.open("xb") as copy:
        left = os.fstat(content.fileno()).st_size
        try:
            while left > 0 and (count := os.copy_file_range(content.fileno(), copy.fileno(), left)):
                left -= count
        except OSError as error:
            if error.errno not in _NO_COPY_IN_KERNEL:
                raise
            content.seek(copy.seek(0, os.SEEK_END))
            shutil.copyfileobj(content, copy)


def read_blocks(file: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the content between two offsets."""
    with file.open("rb") as content:
        content.seek(start)
        left = file.stat().st_size - start if end is None else end - start
        while left > 0 and (block := content.read(min(BLOCK_BYTES, left))):
            left -= len(block)
            yield block


def prefetch(pool: ThreadPoolExecutor, calls: Iterator[Callable[[], T]], count: int) -> Iterator[T]:
    """Yield the results of calls in their order, with up to `count` of them running; raises what one raises."""
    running: deque[Future[T]] = deque(pool.submit(call) for call in islice(calls, count))
    try:
        while running:
            result = running.popleft().result()
            running.extend(pool.submit(call) for call in islice(calls, 1))
            yield result
    finally:
        for future in running:
            future.cancel()
