"""The files of a folder that a job file names."""

import os
from collections.abc import Iterator
from pathlib import Path

from jobs.input_files import InputFile
from jobs.limits import MAX_FILES
from jobs.plain_text import has_hidden

IGNORED = "."  #: what begins so is no input: version control, checkpoints of editors


def files_in(folder: Path) -> dict[str, InputFile]:
    """Return all files of a folder, by their names in it. Raises OSError for a folder that can't be read.

    Raises ValueError where there are none, too many, or names that are hard to see.
    """
    files: dict[str, InputFile] = {}
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if has_hidden(name) or "=" in name:
            raise ValueError(f"has a file whose name can't be used: {name!r}; rename it")
        files[name] = InputFile(str(path))
        if len(files) > MAX_FILES:
            raise ValueError(f"has more than {MAX_FILES} files: give a folder with nothing but what is needed")
    if not files:
        raise ValueError(f"the folder {folder} has no files")
    return dict(sorted(files.items()))


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder; links to folders are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(IGNORED):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path)
