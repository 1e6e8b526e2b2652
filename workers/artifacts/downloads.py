"""Bringing a file here: verified in the same pass, and gone on with where an earlier try ended."""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.errors import DISK_FULL_ERRNOS
from jobs.task import Artifact
from workers.artifacts.shelf import READ_ONLY
from workers.artifacts.streams import blocks_of

if TYPE_CHECKING:
    from hashlib import _Hash

Source = Callable[[int], Iterator[bytes]]  #: the content from an offset on


def fetched(artifact: Artifact, destination: Path, source: Source) -> bool:
    """Bring an artifact to where nothing is, read-only; False where the source's content is not the artifact's."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(f".{destination.name}.{artifact.sha256[:16]}.part")
    if not brought(artifact, part, source):
        return False
    part.chmod(READ_ONLY)
    part.replace(destination)
    return True


def brought(artifact: Artifact, part: Path, source: Source) -> bool:
    """Write an artifact, going on with what is there of it; False where the source's content is not the artifact's.

    For one writer at a time. What it raises leaves the beginning for the next try; a full disk nothing.
    """
    had_bytes = part.stat().st_size if part.exists() else 0
    is_sound = _written(artifact, part, source)
    if not is_sound and had_bytes:  # the fault may be in what was here
        part.unlink()
        is_sound = _written(artifact, part, source)
    if not is_sound:
        part.unlink()
    return is_sound


def _written(artifact: Artifact, part: Path, source: Source) -> bool:
    digest = hashlib.sha256()
    try:
        with part.open("ab") as file, ThreadPoolExecutor(1) as pool:
            have = file.tell()
            _read_into(digest, part, have)
            if have < artifact.size_bytes:
                for block in source(have):
                    hashing = pool.submit(digest.update, block)
                    file.write(block)
                    hashing.result()
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            part.unlink(missing_ok=True)
        raise
    return digest.hexdigest() == artifact.sha256


def _read_into(digest: "_Hash", part: Path, size_bytes: int) -> None:
    for block in blocks_of(part, 0, size_bytes):
        digest.update(block)
