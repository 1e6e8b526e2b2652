"""The check that an attempt reads the models and files that its job was planned with."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.input_files import input_files
from jobs.models import ModelKind, ModelSource, content_files, resolve
from jobs.task import Attempt
from workers.inputs.content_digests import ContentDigests, FileContent, Unsteady

READERS = 4  #: files that are read at the same time
SUBMIT_AGAIN = "submit the job again"
FETCH_AGAIN = "it is not what the hub has: remove it, so that it is fetched again, and retry"

Identities = Mapping[Path, str]  #: of the files that are there


class InputChanged(Exception):
    """A model or file is not what the job was planned with; the message says which, and what to do."""


@dataclass(frozen=True)
class PlannedFile:
    """A file on this node, with the content that the job was planned with."""

    path: Path
    sha256: str
    remedy: str = SUBMIT_AGAIN


def check_inputs(
    attempt: Attempt, environment: Mapping[str, str], digests: ContentDigests, should_stop: Callable[[], bool]
) -> Identities:
    """Return the identities of the files that an attempt reads; raises InputChanged if one is not as planned.

    `environment` is that of its processes, which says where they keep the hub's models; what they have yet to fetch is
    left out. Raises Stopped when `should_stop` says so.
    """

    def read(file: PlannedFile) -> FileContent:
        try:
            return digests.read(file.path, should_stop)
        except (FileNotFoundError, NotADirectoryError):
            raise InputChanged(f"{file.path} was removed after the job was submitted: {SUBMIT_AGAIN}") from None
        except Unsteady:
            raise InputChanged(f"{file.path} is being written: when it is complete, {SUBMIT_AGAIN}") from None

    of_commands = {name: value for command in attempt.commands for name, value in command.env.items()}
    files = planned_files(attempt, {**environment, **of_commands})
    with ThreadPoolExecutor(READERS) as pool:
        contents = list(pool.map(read, files))
    for file, content in zip(files, contents, strict=True):
        if content.sha256 != file.sha256:
            raise InputChanged(f"{file.path} has changed since the job was submitted: {file.remedy}")
    return {file.path: content.identity for file, content in zip(files, contents, strict=True)}


def is_unchanged(before: Identities, after: Identities) -> bool:
    """Return whether no file changed in between, even if its content is the same again; it may have been fetched."""
    return all(after.get(file) == identity for file, identity in before.items())


def planned_files(attempt: Attempt, environment: Mapping[str, str]) -> Sequence[PlannedFile]:
    """Return the files that an attempt reads, as far as they are here; raises InputChanged if the model has others."""
    files = [PlannedFile(Path(file.path), file.sha256) for file in input_files(attempt.settings) if file.sha256]
    if not attempt.model_files:  # it reads no model, or its job was stored before they were recorded
        return files
    model = attempt.settings["model"]
    try:
        source = resolve(model["text"])
    except ValueError as error:
        raise InputChanged(f"{error}: bring it back as it was, or {SUBMIT_AGAIN}") from None
    if source.kind is ModelKind.PROGRAM:
        return [*files, *(PlannedFile(Path(source.text), sha256) for sha256 in attempt.model_files.values())]
    if source.folder is None:
        return [*files, *_fetched_files(model, attempt.model_files, environment)]
    _expect_no_others(source, attempt.model_files)
    return [*files, *(PlannedFile(source.folder / name, sha256) for name, sha256 in attempt.model_files.items())]


def _expect_no_others(source: ModelSource, names: Mapping[str, str]) -> None:
    if source.folder is None or source.kind is ModelKind.SHAPE:
        return
    added = next((file for file in content_files(source.folder) if file.name not in names), None)
    if added:
        raise InputChanged(f"{added} was added after the job was submitted: {SUBMIT_AGAIN}")


def _fetched_files(
    model: Mapping[str, Any], names: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[PlannedFile]:
    """Yield the files of a hub model that are in the cache of the attempt's processes."""
    from huggingface_hub import try_to_load_from_cache

    cache = hub_cache(environment)
    for name, sha256 in names.items():
        path = try_to_load_from_cache(model["text"], name, cache_dir=cache, revision=model["revision"])
        if isinstance(path, str):
            yield PlannedFile(Path(path), sha256, FETCH_AGAIN)


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Return where processes with an environment keep the hub's models, as `huggingface_hub.constants` says it."""
    if cache := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := environment.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    user_cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~"), ".cache"))
    return Path(user_cache).expanduser() / "huggingface" / "hub"
