"""YAML files: plain types, lines of keys, and limits that hold for what aliases stand for."""

from pathlib import Path
from typing import Any

import pytest

from jobs.errors import JobFileError
from orchestrator.yaml_document import MAX_DEPTH, MAX_VALUES, YamlDocument, read

LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))])


def document(folder: Path, text: str) -> YamlDocument:
    (folder / "x.yaml").write_text(text)
    return read(folder / "x.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on: yes", {"on": True}),
        ("1: 2", {"1": 2}),
        ("a: 2026-11-22", {"a": "2026-11-22"}),
        ("a: 2001-99-99", {"a": "2001-99-99"}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3", {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}),
        ("- 0x1F\n- .5\n- ~", [31, 0.5, None]),
        ("", None),
    ],
)
def test_values_are_of_plain_types(tmp_path: Path, text: str, value: Any) -> None:
    assert document(tmp_path, text).value == value


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (LAUGHS, 5, f"has more than {MAX_VALUES} values"),
        ("a: &x [*x]", 1, "*x contains itself"),
        ("a: 1\nb: " + "[" * 40 + "]" * 40, 2, f"is nested deeper than {MAX_DEPTH} levels"),
        ("a: &x " + "[" * 20 + "]" * 20 + "\nb: " + "[" * 20 + "*x" + "]" * 20, 2, "is nested deeper than"),
        ("a: *nowhere", 1, "is not YAML: found undefined alias"),
        ("a: 1\n[1]: 2", 2, "has a key that is no text"),
        ("a: 0x_", 1, "has a value that is no int"),
        ("a: !!int abc", 1, "has a value that is no int"),
        ("a: !!bool maybe", 1, "has a value that is no bool"),
        ("a: " + "9" * 5000, 1, "has a value that is no int"),
        ("a: !!timestamp 2026-11-22", 1, "could not determine a constructor"),
        ("a: !!python/name:os.system", 1, "could not determine a constructor"),
        ('a: "x\\0y"', 1, "has a text with NUL"),
        ('a: "\\uD800"', 1, "half a character"),
        ("a: 1\na: 2", 2, "occurs twice"),
    ],
)
def test_other_documents_are_refused_with_their_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    with pytest.raises(JobFileError) as error:
        document(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'x.yaml'}:{line}: ")
    assert reason in str(error.value)


def test_lines_are_those_of_keys_and_items(tmp_path: Path) -> None:
    lines = document(tmp_path, "a:\n  - x\n  - {b: 1}\nc: 1\n").lines
    assert lines == {("a",): 1, ("a", 0): 2, ("a", 1): 3, ("a", 1, "b"): 3, ("c",): 4}
