"""YAML files that people write, with the line of every key, so that errors name file, line and key.

This is our own code because neither PyYAML nor pydantic keeps the lines of keys, and because PyYAML has no limits: a
few hundred bytes of aliases can stand for gigabytes. A document has texts, numbers, booleans, null, lists and mappings;
dates are texts, and tags for other types are refused.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from jobs.errors import JobFileError
from jobs.problems import Key, Problem

MAX_BYTES = 256 << 10  #: a job file is a page, not a data set
MAX_VALUES = 10_000  #: in a document, where an alias counts as all that it stands for
MAX_DEPTH = 32  #: of lists and mappings in each other

TAG = "tag:yaml.org,2002:"
TYPES = frozenset(TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))
TEXT, MERGE = TAG + "str", TAG + "merge"
NO_TEXT = re.compile("[\0\ud800-\udfff]")  #: neither files, arguments nor databases can hold these


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


class _Refused(yaml.MarkedYAMLError):
    """YAML that is well-formed, and not accepted."""


class _Loader(yaml.SafeLoader):
    """Loads YAML's plain types within limits; every key is a text, also `on`, which YAML 1.1 reads as true."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = self._depth = self._deepest = 0
        self._extents: dict[yaml.Node, tuple[int, int]] = {}  #: of complete nodes: values and depth

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, counting its values and depth."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before, deepest = self._values, self._deepest
        is_alias = isinstance(event, yaml.AliasEvent)
        self._depth += 1
        self._deepest = self._depth
        self._count(0 if is_alias else 1, event)
        node = super().compose_node(parent, index)
        assert node is not None
        if is_alias:
            if node not in self._extents:
                raise _Refused(problem=f"*{event.anchor} contains itself", problem_mark=event.start_mark)
            values, depth = self._extents[node]
            self._deepest = self._depth + depth - 1
            self._count(values, event)
        else:
            self._extents[node] = (self._values - before, self._deepest - self._depth + 1)
        self._depth -= 1
        self._deepest = max(deepest, self._deepest)
        return node

    def _count(self, values: int, event: Any) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise _Refused(problem=f"has more than {MAX_VALUES} values", problem_mark=event.start_mark)
        if self._deepest > MAX_DEPTH:
            raise _Refused(problem=f"is nested deeper than {MAX_DEPTH} levels", problem_mark=event.start_mark)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping whose keys are texts."""
        mapping = super().compose_mapping_node(anchor)
        mapping.value = [(_text_key(key), value) for key, value in mapping.value]
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, ArithmeticError) as error:  # how PyYAML refuses `!!int abc`
            kind = node.tag.removeprefix(TAG)
            raise _Refused(problem=f"has a value that is no {kind}", problem_mark=node.start_mark) from error
        if isinstance(value, str) and NO_TEXT.search(value):
            raise _Refused(problem="has a text with NUL or half a character", problem_mark=node.start_mark)
        return value


#: without those of dates, so that `2026-11-22` is a text
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in TYPES | {MERGE}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.yaml_constructors = {
    tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag in TYPES
}


def _text_key(key: yaml.Node) -> yaml.ScalarNode:
    if not isinstance(key, yaml.ScalarNode):
        raise _Refused(problem="has a key that is no text", problem_mark=key.start_mark)
    tag = MERGE if key.tag == MERGE else TEXT
    return yaml.ScalarNode(tag, key.value, key.start_mark, key.end_mark)


def read(path: Path) -> YamlDocument:
    """Read and parse a YAML file; raises JobFileError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _too_large(path)
        return parse(path.read_text(encoding="utf-8"), path)
    except UnicodeDecodeError as error:
        raise JobFileError(str(path), None, "", f"is not YAML: {error}") from error
    except OSError as error:
        raise JobFileError(str(path), None, "", f"can't be read: {error.strerror}") from error


def parse(text: str, path: Path) -> YamlDocument:
    """Parse a text in YAML; `path` stands for it in errors, and for its folder. Raises JobFileError."""
    if len(text) > MAX_BYTES:
        raise _too_large(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = dict(_lines(path, node, ()))
        return YamlDocument(path, None if node is None else loader.construct_document(node), lines)
    except _Refused as error:
        raise JobFileError(str(path), _line(error), "", str(error.problem)) from error
    except yaml.MarkedYAMLError as error:
        raise JobFileError(str(path), _line(error), "", f"is not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise JobFileError(str(path), None, "", f"is not YAML: {first}") from error


def _too_large(path: Path) -> JobFileError:
    return JobFileError(str(path), None, "", f"is larger than {MAX_BYTES >> 10} KiB: give a job file")


def _line(error: yaml.MarkedYAMLError) -> int | None:
    return error.problem_mark.line + 1 if error.problem_mark else None


def _lines(path: Path, node: yaml.Node | None, at: Key) -> Iterator[tuple[Key, int]]:
    """Yield the line of every key and list item; raises JobFileError for a key that occurs twice."""
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in keys:
                raise JobFileError(str(path), line, key.value, "occurs twice")
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
