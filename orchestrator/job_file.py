"""Reading job files and recipes: every mistake is told with its file, line and key."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

import jobs
from jobs.errors import JobFileError, UnknownRecipe
from jobs.models import ModelSource, resolve
from jobs.plan import each_problem, stages_problem
from jobs.spec import JobSpec

RECIPES = Path(jobs.__file__).parent / "recipes"
MAX_BYTES = 1 << 20  #: a job file is a page, not a data set

Key = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """Keys are words: YAML 1.1 reads the key `on` as true."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag == "tag:yaml.org,2002:bool":
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def recipes() -> tuple[str, ...]:
    """Names of the job files that ship with haloctl."""
    return tuple(sorted(path.stem for path in RECIPES.glob("*.yaml")))


def find(name: str) -> Path:
    """The file that a user means by `name`: a file's path, or a recipe's name."""
    path = Path(name)
    if path.is_file():
        return path
    if name in recipes():
        return RECIPES / f"{name}.yaml"
    if path.is_dir():
        raise JobFileError(name, None, "", "is a folder; a job file is needed")
    raise UnknownRecipe(name, recipes())


def load(name: str) -> tuple[JobSpec, ModelSource]:
    """Read, check and complete a job file; its model and text are taken from the file's own folder."""
    path = find(name)
    lines, value = _parse(path)
    if not isinstance(value, dict):
        raise JobFileError(str(path), None, "", "should be a mapping of keys such as name, model and variants")
    try:
        spec = JobSpec.model_validate(value)
    except ValidationError as error:
        raise _first_of(path, lines, error) from error
    for key, problem in ((("stages",), stages_problem(spec)), (("benchmark", "on"), each_problem(spec))):
        if problem:
            raise _at(path, lines, key, problem)
    try:
        source = resolve(spec.model, path.parent)
    except ValueError as error:
        raise _at(path, lines, ("model",), str(error)) from error
    return _with_text(path, lines, spec), source


def _with_text(path: Path, lines: dict[Key, int], spec: JobSpec) -> JobSpec:
    if spec.numerics.text is None:
        return spec
    text = (path.parent / Path(spec.numerics.text).expanduser()).resolve()
    if not text.is_file():
        raise _at(path, lines, ("numerics", "text"), f"the file {text} does not exist")
    return spec.model_copy(update={"numerics": spec.numerics.model_copy(update={"text": str(text)})})


def _parse(path: Path) -> tuple[dict[Key, int], Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise JobFileError(str(path), None, "", "is larger than 1 MiB; is it a job file?")
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return dict(_lines(path, node, ())), yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise JobFileError(str(path), line, "", f"is not YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise JobFileError(str(path), None, "", f"is not YAML: {error}".splitlines()[0]) from error
    except RecursionError as error:
        raise JobFileError(str(path), None, "", "is nested too deeply") from error
    except OSError as error:
        raise JobFileError(str(path), None, "", f"can't be read: {error.strerror}") from error


def _lines(path: Path, node: yaml.Node | None, at: Key) -> Iterator[tuple[Key, int]]:
    """The line of every key and list item; a key given twice is refused."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise JobFileError(str(path), line, str(key.value), "is given twice")
            seen.add(key.value)
            yield (*at, key.value), line
            yield from _lines(path, value, (*at, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*at, index), value.start_mark.line + 1
            yield from _lines(path, value, (*at, index))


def _at(path: Path, lines: dict[Key, int], key: Key, message: str) -> JobFileError:
    while key and isinstance(key[-1], int) and key not in lines:  # a single value that stands for a list
        key = key[:-1]
    known = next((key[:size] for size in range(len(key), 0, -1) if key[:size] in lines), ())
    return JobFileError(str(path), lines.get(known), _dotted(key), message)


def _dotted(key: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def _first_of(path: Path, lines: dict[Key, int], error: ValidationError) -> JobFileError:
    """The first mistake in full (a misspelled key before one that is missing); of the others, how many there are."""
    mistakes = sorted(error.errors(include_url=False), key=lambda mistake: mistake["type"] != "extra_forbidden")
    first, more = mistakes[0], len(mistakes) - 1
    key = first["loc"]
    message = _said(key, first["type"], first["msg"], first.get("input"))
    return _at(path, lines, key, message + (f" (and {more} more)" if more else ""))


def _said(key: Key, kind: str, message: str, given: object) -> str:
    if kind == "extra_forbidden":
        known = _keys_at(key[:-1])
        close = difflib.get_close_matches(str(key[-1]), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        return f"is not a key of a job file here: {hint}"
    if kind == "missing":
        return "is missing"
    text = message.removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    return text if isinstance(given, dict | list) else f"{text}, not {given!r}"


def _keys_at(key: Key) -> list[str]:
    """The keys that a job file may have at a place."""
    model: type[BaseModel] = JobSpec
    for part in key:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[str(part)].annotation
        inner = next((item for item in (annotation, *getattr(annotation, "__args__", ())) if _is_section(item)), None)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _is_section(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, BaseModel)
