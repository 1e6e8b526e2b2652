"""Names that become parts of paths: of stages, attempts, artifacts and toolchains, which a database or a node sent."""

import re
from pathlib import Path

from jobs.errors import UnsafePath
from jobs.plain_text import has_hidden

PART = re.compile(r"\w[\w.,+=@-]*")
MAX_PART_BYTES = 200  #: file systems take 255; some is for prefixes and suffixes


def path_part(name: object) -> str:
    """Return a name that is safe as one part of a path, whatever the folder; raises UnsafePath for any other."""
    if not isinstance(name, str) or not PART.fullmatch(name) or has_hidden(name):
        raise UnsafePath(str(name), "is no name of a file")
    if len(name.encode()) > MAX_PART_BYTES:
        raise UnsafePath(f"{name[:20]}...", "is too long for the name of a file")
    return name


def path_below(folder: Path, *parts: str) -> Path:
    """Return a path below a folder to write to; raises UnsafePath for an unsafe part, or a symbolic link on the way."""
    path = folder
    for part in parts:
        path /= path_part(part)
        if path.is_symlink():
            raise UnsafePath(str(path), "is a symbolic link; remove it")
    return path
