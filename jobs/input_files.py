"""Files of a job that are no artifacts, such as calibration text: a stage reads the content that was planned."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class InputFile:
    """A file with the sha256 that it had when the job was submitted."""

    path: str
    sha256: str = ""  #: empty: not computed yet, or of a job that was stored without it


@dataclass(frozen=True)
class InputFolder:
    """A folder with the files that it had when the job was submitted."""

    path: str
    files: Mapping[str, InputFile] = field(default_factory=dict)  #: by their names in it; empty: not listed yet


def folder_setting(folder: InputFolder | None) -> dict[str, dict[str, str]]:
    """Return a folder's files as a stage's settings contain them; its own path does not matter."""
    return {name: asdict(file) for name, file in sorted(folder.files.items())} if folder else {}


def file_setting(file: InputFile | None) -> dict[str, str] | None:
    """Return a file as a stage's settings contain it."""
    return None if file is None else asdict(file)


def path_of(setting: Mapping[str, str] | str) -> str:
    """Return the path of a file in a stage's settings; those of older jobs have nothing but the path."""
    return setting if isinstance(setting, str) else setting["path"]


def input_files(settings: Any) -> Iterator[InputFile]:
    """Yield the files in a stage's settings, wherever in them they are."""
    if _is_file(settings):
        yield InputFile(**settings)
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from input_files(value)


def without_paths(settings: Any) -> Any:
    """Return settings with the sha256 of each file and without its path, which does not identify it."""
    if _is_file(settings) and settings["sha256"]:
        return {"sha256": settings["sha256"]}
    if isinstance(settings, Mapping):
        return {key: without_paths(value) for key, value in settings.items()}
    return settings


def _is_file(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"path", "sha256"}
