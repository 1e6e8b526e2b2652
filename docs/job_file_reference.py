"""The page `reference/job-file`, rendered from the models that check job files.

Run `python docs/job_file_reference.py` after a change of a key; a test compares the committed page with the models.
"""

import json
from collections.abc import Iterator
from dataclasses import astuple
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, MultipleOf
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jobs.field_types import AllowedNames, Seconds
from jobs.input_files import InputFile
from jobs.job_file.spec import JobSpec

PAGE = Path(__file__).parent / "reference" / "job-file.md"
INTRODUCTION = """# Job files

A job file is YAML. `name` and `model` are required; every other key has a default. A single value can stand for a list
of one (`tp: 8`). A file's path is relative to the job file; `{path: FILE, sha256: DIGEST}` in its place pins its
content. Keys that are not listed here are refused, and every error names the file, the line and the key.

```yaml
name: llama-on-mi300x
model: meta-llama/Llama-3.1-8B
variants:
  precision: [f16, fp8]
  tp: [1, 8]
  target: mi300x
stages: [quantize, export, compile, numerics, benchmark]
workload: {batch: [1, 4], prompt_tokens: 128, new_tokens: 32}
timeout: 1h30m
```

`haloctl submit FILE --dry-run` prints the tasks of a job file without submitting it.
"""
HEADER = "| key | type | default | meaning |\n| --- | --- | --- | --- |"
TYPES = {bool: "`true` or `false`", int: "integer", float: "number", str: "text", InputFile: "text"}
BOUNDS = {Ge: "≥ {}", Gt: "> {}", Le: "≤ {}", MultipleOf: "a multiple of {}"}


def render() -> str:
    """Return the page as Markdown."""
    return "\n".join((INTRODUCTION, *_section("Top level", JobSpec)))


def _section(title: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"## {title}\n\n{model.__doc__}\n\n{HEADER}"
    annotations = get_type_hints(model, include_extras=True)
    sections = {name: section for name, kind in annotations.items() if (section := _section_of(kind))}
    for name, field in model.model_fields.items():
        meaning = " ".join((field.description or "").split())
        kind = f"section [{name}](#{name})" if name in sections else _type(annotations[name])
        yield f"| `{name}` | {kind} | {_default(field, annotations[name])} | {meaning} |"
    yield ""
    for name, section in sections.items():
        yield from _section(name, section)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a key holds: itself, or the alternative to none."""
    kinds = get_args(annotation) if get_origin(annotation) is not list else ()
    kinds = kinds or (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _type(annotation: Any) -> str:
    """Return an annotation in words."""
    arguments = get_args(annotation)
    if annotation == Seconds:
        return "duration"
    if get_origin(annotation) is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if get_origin(annotation) is Literal:
        return _values(arguments)
    if get_origin(annotation) is list:
        return f"{_type(arguments[0])} (list)"
    if arguments and NoneType in arguments:
        return _type(next(argument for argument in arguments if argument is not NoneType))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _values(member.value for member in annotation)
    return TYPES.get(annotation, "mapping")


def _annotated(kind: Any, metadata: Any) -> str:
    names = next((item for item in metadata if isinstance(item, AllowedNames)), None)
    if names is not None:
        return _values(names.names())
    limits = [limit for item in metadata for limit in getattr(item, "metadata", (item,))]
    bounds = [BOUNDS[type(limit)].format(*astuple(limit)) for limit in limits if type(limit) in BOUNDS]
    return " ".join((_type(kind), ", ".join(bounds))).rstrip()


def _values(values: Any) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _default(field: FieldInfo, annotation: Any) -> str:
    """Return a key's default as a job file would spell it; empty if the meaning tells it."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default in (None, [], {}) or isinstance(default, BaseModel):
        return ""
    if annotation == Seconds:
        return f"`{default / 60:g}m`"
    if isinstance(default, list):
        return _values(default)
    return f"`{default if isinstance(default, str) else json.dumps(default, default=_given)}`"


def _given(section: BaseModel) -> dict[str, Any]:
    return section.model_dump(exclude_none=True)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
