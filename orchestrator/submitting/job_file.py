"""Reading job files and recipes: every mistake is told with its file, line and key."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

import jobs
from jobs.errors import JobFileError, UnknownRecipe, UnknownToolchain
from jobs.models import ModelSource, resolve
from jobs.plan import each_problem, stages_problem, toolchain_problem, torch_problem
from jobs.quantizers import MAKERS, File, settings_problem
from jobs.spec import JobSpec
from jobs.toolchains import TOOLCHAINS, Row
from jobs.toolchains import find as find_toolchain

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


def load(name: str, toolchains: Mapping[str, Row] = TOOLCHAINS) -> tuple[JobSpec, list[ModelSource]]:
    """Read, check and complete a job file; its models and text are taken from the file's own folder."""
    path = find(name)
    lines, value = parse(path)
    if not isinstance(value, dict):
        raise JobFileError(str(path), None, "", "should be a mapping of keys such as name, model and variants")
    try:
        spec = JobSpec.model_validate(value)
    except ValidationError as error:
        raise _first_of(path, lines, error) from error
    _expect_known(path, lines, spec, toolchains)
    problems = {
        ("stages",): stages_problem(spec),
        ("quantize",): settings_problem(
            spec.variants.of(""), spec.quantize.granularity, spec.quantize.inputs, spec.quantize.options
        ),
        ("benchmark", "on"): each_problem(spec),
        ("torch",): torch_problem(spec),
        ("variants", "toolchain"): toolchain_problem(spec, toolchains),
    }
    for key, problem in problems.items():
        if problem:
            raise at(path, lines, key, problem)
    return _with_files(path, lines, spec), _sources(path, lines, spec)


def _sources(path: Path, lines: dict[Key, int], spec: JobSpec) -> list[ModelSource]:
    """Each model that is named, and no two called alike; exclusions name some of them."""
    found: dict[str, ModelSource] = {}
    for index, text in enumerate(spec.model):
        try:
            source = resolve(text, path.parent)
        except ValueError as error:
            raise at(path, lines, ("model", index), str(error)) from error
        if source.name in found:
            raise at(path, lines, ("model", index), f"is called {source.name} like {found[source.name].text}")
        found[source.name] = source
    names = {name for source in found.values() for name in source.called}
    for index, rule in enumerate(spec.variants.exclude):
        if rule.model is not None and rule.model not in names:
            one_of = ", ".join(source.text for source in found.values())
            raise at(path, lines, ("variants", "exclude", index, "model"), f"should be one of {one_of}")
    return list(found.values())


def _expect_known(path: Path, lines: dict[Key, int], spec: JobSpec, toolchains: Mapping[str, Row]) -> None:
    """Refuse toolchains that there are not."""
    named: dict[Key, str] = {
        ("variants", "toolchain", index): name for index, name in enumerate(spec.variants.toolchain)
    }
    for index, rule in enumerate(spec.variants.exclude):
        if rule.toolchain is not None:
            named["variants", "exclude", index, "toolchain"] = rule.toolchain
    for key, name in named.items():
        try:
            find_toolchain(name, toolchains)
        except UnknownToolchain as error:
            raise at(path, lines, key, str(error)) from error


def _with_files(path: Path, lines: dict[Key, int], spec: JobSpec) -> JobSpec:
    """The spec with the whole path of each file that it names; one that is not there is refused."""

    def whole(key: Key, name: str) -> str:
        file = (path.parent / Path(name).expanduser()).resolve()
        if not file.is_file():
            raise at(path, lines, key, f"the file {file} does not exist")
        return str(file)

    numerics, quantize = spec.numerics, spec.quantize
    if numerics.text is not None:
        numerics = numerics.model_copy(update={"text": whole(("numerics", "text"), numerics.text)})
    if quantize.text is not None:
        quantize = quantize.model_copy(update={"text": whole(("quantize", "text"), quantize.text)})
    options = {
        maker: {
            key: whole(("quantize", "options", maker, key), str(value))
            if isinstance(MAKERS[maker].options[key], File)
            else value
            for key, value in given.items()
        }
        for maker, given in quantize.options.items()
    }
    quantize = quantize.model_copy(update={"options": options})
    return spec.model_copy(update={"numerics": numerics, "quantize": quantize})


def parse(path: Path) -> tuple[dict[Key, int], Any]:
    """A YAML file's value, and the line of every key and list item in it."""
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


def at(path: Path, lines: dict[Key, int], key: Key, message: str) -> JobFileError:
    """A mistake, with the line of its key."""
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
    return at(path, lines, key, message + (f" (and {more} more)" if more else ""))


def _said(key: Key, kind: str, message: str, given: object) -> str:
    if kind == "extra_forbidden":
        known = _keys_at(key[:-1])
        close = difflib.get_close_matches(str(key[-1]), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        return f"is not a key of a job file here: {hint}"
    if kind == "missing":
        return "is missing"
    text = after_a_colon(message)
    return text if isinstance(given, dict | list) else f"{text}, not {given!r}"


def after_a_colon(message: str) -> str:
    """pydantic's message as the rest of a sentence; what our own checks say is one already."""
    own = message.removeprefix("Value error, ")
    return own if own != message else message[0].lower() + message[1:]


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
