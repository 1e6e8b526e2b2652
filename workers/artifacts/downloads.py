"""Downloads that are verified in the same pass, and resumed where an earlier try ended."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.errors import DISK_FULL_ERRNOS
from jobs.task import Artifact
from workers.artifacts.backend import READ_ONLY
from workers.artifacts.streams import read_blocks
from workers.durability import replace_durably

if TYPE_CHECKING:
    from hashlib import _Hash

Source = Callable[[int], Iterator[bytes]]  #: yields the content from an offset on


def download(artifact: Artifact, destination: Path, source: Source) -> bool:
    """Download to a path where nothing is, read-only; False where the source's content is not the artifact's."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(f".{destination.name}.{artifact.sha256[:16]}.part")
    if not download_part(artifact, part, source):
        return False
    part.chmod(READ_ONLY)
    replace_durably(part, destination)
    return True


def download_part(artifact: Artifact, part: Path, source: Source) -> bool:
    """Download to `part`, resuming what is there of it; False where the source's content is not the artifact's.

    For one writer at a time. When this raises, what was downloaded stays for the next try, except on a full disk.
    """
    resumed_bytes = part.stat().st_size if part.exists() else 0
    is_sound = _write(artifact, part, source)
    if not is_sound and resumed_bytes:  # the fault may be in what was there before
        part.unlink()
        is_sound = _write(artifact, part, source)
    if not is_sound:
        part.unlink()
    return is_sound


def _write(artifact: Artifact, part: Path, source: Source) -> bool:
    digest = hashlib.sha256()
    try:
        with open(part, "ab", opener=_open_no_link) as file, ThreadPoolExecutor(1) as pool:
            resumed_bytes = file.tell()
            _hash_file(digest, part, resumed_bytes)
            if resumed_bytes < artifact.size_bytes:
                for block in source(resumed_bytes):
                    hashing = pool.submit(digest.update, block)
                    file.write(block)
                    hashing.result()
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            part.unlink(missing_ok=True)
        raise
    return digest.hexdigest() == artifact.sha256


def _open_no_link(path: str, flags: int) -> int:
    """Open a file, but not through a symbolic link that somebody put there."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _hash_file(digest: "_Hash", file: Path, size_bytes: int) -> None:
    for block in read_blocks(file, 0, size_bytes):
        digest.update(block)
