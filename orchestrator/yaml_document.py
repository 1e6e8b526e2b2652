"""YAML files that people write, with the line of every key, so that errors name file, line and key.

This is our own code because neither PyYAML nor pydantic keeps the lines of keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from jobs.errors import JobFileError
from jobs.problems import Key, Problem

MAX_BYTES = 1 << 20  #: a job file is a page, not a data set


@dataclass(frozen=True)
class YamlDocument:
    """A parsed YAML file: its value, and the line of every key and list item."""

    path: Path
    value: Any
    lines: dict[Key, int]

    def error(self, key: Key, message: str) -> JobFileError:
        """Return the error about a key, with the line of the key or of the closest section around it."""
        while key and isinstance(key[-1], int) and key not in self.lines:  # a single value in place of a list
            key = key[:-1]
        at = next((key[:size] for size in range(len(key), 0, -1) if key[:size] in self.lines), ())
        return JobFileError(str(self.path), self.lines.get(at), dotted(key), message)

    def error_about(self, problem: Problem) -> JobFileError:
        """Return the error about a problem, at the first of its keys that the file contains."""
        return self.error(next((key for key in problem.keys if key in self.lines), problem.keys[0]), problem.message)


class _Loader(yaml.SafeLoader):
    """Loads the key `on` as a string, which YAML 1.1 reads as true."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag == "tag:yaml.org,2002:bool":
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def read(path: Path) -> YamlDocument:
    """Read and parse a YAML file; raises JobFileError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise JobFileError(str(path), None, "", "is larger than 1 MiB: give a job file")
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return YamlDocument(path, yaml.load(text, Loader=_Loader), dict(_lines(path, node, ())))
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
    """Yield the line of every key and list item; raises JobFileError for a key that occurs twice."""
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in keys:
                raise JobFileError(str(path), line, str(key.value), "occurs twice")
            keys.add(key.value)
            yield (*at, key.value), line
            yield from _lines(path, value, (*at, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*at, index), value.start_mark.line + 1
            yield from _lines(path, value, (*at, index))


def dotted(key: Sequence[str | int]) -> str:
    """Return a key as people write it: `variants.exclude[0].tp`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def as_clause(message: str) -> str:
    """Return a message of pydantic as the rest of a sentence, which messages of our own validators are already."""
    ours = message.removeprefix("Value error, ")
    return ours if ours != message else message[0].lower() + message[1:]
