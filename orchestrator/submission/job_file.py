"""Reading job files and recipes: every mistake is reported with its file, line and key."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from jobs.errors import JobFileError, UnknownRecipe
from jobs.input_files import InputFile, InputFolder
from jobs.job_file.files import with_files
from jobs.job_file.job_checks import job_problem
from jobs.job_file.spec import JobSpec
from jobs.models import RECIPES, ModelSource, is_path, resolve, resolve_path, shorten
from jobs.problems import Key, Problem
from jobs.toolchain_table import TOOLCHAINS
from jobs.toolchains import ToolchainSpec
from orchestrator.submission.folders import files_in
from orchestrator.submission.readable_folders import ANYWHERE, ReadableFolders
from orchestrator.yaml_document import YamlDocument, as_clause, read


@dataclass(frozen=True)
class JobFile:
    """A job file that was read and checked, with the lines of its keys for problems that are found later."""

    document: YamlDocument
    spec: JobSpec  #: with absolute paths
    sources: tuple[ModelSource, ...]  #: its models, in order

    def error(self, problem: Problem) -> JobFileError:
        """Return the error about a problem, with the line of the key that is to blame."""
        return self.document.error_about(problem)


def recipes() -> tuple[str, ...]:
    """Return the names of the job files that ship with haloctl."""
    return tuple(sorted(path.stem for path in RECIPES.glob("*.yaml")))


def find(name: str) -> Path:
    """Return the file that a user means by `name`: a file's path or a recipe's name."""
    if name in recipes() and not Path(name).is_file():
        return RECIPES / f"{name}.yaml"
    try:
        path = resolve_path(name, Path.cwd())
    except ValueError as error:
        raise JobFileError(shorten(name), None, "", str(error)) from error
    if path.is_file():
        return Path(name)
    if path.is_dir():
        raise JobFileError(name, None, "", "is a folder; give a job file")
    raise UnknownRecipe(shorten(name), recipes())


def load(name: str, toolchains: Mapping[str, ToolchainSpec] = TOOLCHAINS) -> JobFile:
    """Read, check and complete a job file; paths in it are relative to its folder. Raises JobFileError."""
    return check(read(find(name)), ANYWHERE, toolchains)


def check(document: YamlDocument, readable: ReadableFolders, toolchains: Mapping[str, ToolchainSpec]) -> JobFile:
    """Check and complete a document that is a job file. Raises JobFileError."""
    if not isinstance(document.value, dict):
        raise document.error((), "should be a mapping of keys such as name, model and variants")
    try:
        spec = JobSpec.model_validate(document.value)
    except ValidationError as error:
        raise _first_error(document, error) from error
    if problem := job_problem(spec, toolchains):
        raise document.error_about(problem)
    return JobFile(document, _with_absolute_paths(document, spec, readable), _sources(document, spec, readable))


def _sources(document: YamlDocument, spec: JobSpec, readable: ReadableFolders) -> tuple[ModelSource, ...]:
    """Return the job's models; refuses two of the same name, and exclusions of a model that the job does not have."""
    sources: dict[str, ModelSource] = {}
    for index, text in enumerate(spec.model):
        try:
            source = resolve(str(readable.find(text, document.path.parent)) if is_path(text) else text)
        except ValueError as error:
            raise document.error(("model", index), str(error)) from error
        if source.name in sources:
            raise document.error(("model", index), f"has the same name, {source.name}, as {sources[source.name].text}")
        sources[source.name] = source
    aliases = {alias for source in sources.values() for alias in source.aliases}
    for index, rule in enumerate(spec.variants.exclude):
        if rule.model is not None and rule.model not in aliases:
            known = ", ".join(source.text for source in sources.values())
            raise document.error(("variants", "exclude", index, "model"), f"should be one of {known}")
    return tuple(sources.values())


def _with_absolute_paths(document: YamlDocument, spec: JobSpec, readable: ReadableFolders) -> JobSpec:
    """Return the spec with the absolute path of each file that it names; refuses a file that does not exist.

    A folder is listed now; files that the job names already stay in it, so that one that is gone is noticed.
    """

    def absolute(key: Key, file: InputFile) -> InputFile:
        try:
            path = readable.find(file.path, document.path.parent)
        except ValueError as error:
            raise document.error(key, str(error)) from error
        if not path.is_file():
            raise document.error(key, f"the file {path} does not exist")
        return replace(file, path=str(path))

    def listed(key: Key, folder: InputFolder) -> InputFolder:
        try:
            path = readable.find(folder.path, document.path.parent)
            return InputFolder(str(path), {**files_in(path), **folder.files})
        except ValueError as error:
            raise document.error(key, str(error)) from error
        except OSError as error:
            raise document.error(key, f"the folder {path} can't be read: {error.strerror}") from error

    return with_files(spec, absolute, listed)


def _first_error(document: YamlDocument, error: ValidationError) -> JobFileError:
    """Return the first mistake (a misspelled key before a missing one), with the number of the others."""
    mistakes = sorted(error.errors(include_url=False), key=lambda mistake: mistake["type"] != "extra_forbidden")
    first, others = mistakes[0], len(mistakes) - 1
    key = tuple(part for part in first["loc"] if part != "[key]")
    message = _message(key, first["type"], first["msg"], first.get("input"))
    return document.error(key, message + (f" (and {others} more)" if others else ""))


def _message(key: Key, kind: str, message: str, value: object) -> str:
    if kind == "extra_forbidden":
        known = _keys_at(key[:-1])
        close = difflib.get_close_matches(str(key[-1]), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        return f"is not a key of a job file here: {hint}"
    if kind == "missing":
        return "is missing"
    text = as_clause(message)
    return text if isinstance(value, dict | list) else f"{text}, not {shorten(repr(value))}"


def _keys_at(key: Key) -> list[str]:
    """Return the keys that a job file may have at a place."""
    model: type[BaseModel] = JobSpec
    for part in key:
        if part not in model.model_fields:  # a position in a list, or a name that the file gives
            continue
        annotation = model.model_fields[str(part)].annotation
        section = next(filter(_is_section, (annotation, *getattr(annotation, "__args__", ()))), None)
        if section is None:
            return []
        model = section
    return list(model.model_fields)


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
