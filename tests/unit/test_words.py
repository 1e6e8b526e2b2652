"""Words that were replaced by the usual terms, and must not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("db", "haloctl", "jobs", "orchestrator", "workers")

#: Names of variables, arguments, attributes, functions and classes that say nothing or that have a usual term.
NAMES = {
    "found": "what was found: task, row, match, ...", "one": "the thing: task, row, digest, ...",
    "here": "what is here: local_node, folder, ...", "own": "whose: own_packages, ...",
    "told": "message, text, values", "Room": "NodeCapacity", "Want": "Request", "Hold": "Reservation",
    "Spot": "Placement", "Bell": "WakeupEvent", "Shelf": "Backend", "Book": "InFlightAttempts",
    "Sameness": "VersionSkew", "stranger": "foreign process", "keeper": "fork server", "hollow": "meta model",
    "maker": "quantizer", "racing": "interleaved", "is_stuck": "is_unschedulable", "is_quiet": "is_exclusive",
    "likeness": "duration key", "twins": "duplicates",
}  # fmt: skip

#: Phrases in docstrings and messages.
PHRASES = {
    "a person who may": "run as root", "begins anew": "restarts", "has it in its hands": "is already in use",
    "no more than so many": "at most", "is pinned no more": "unpinned", "take over what": "reuse what",
    "at most so many": "at most this many", "whence": "from where", "thereof": "of it",
}  # fmt: skip

#: Offences by folder that stay: `Check.found` is a key of what nodes store.
ALLOWED: dict[str, int] = {"jobs/task.py": 1}


def test_replaced_words_do_not_come_back() -> None:
    offences: dict[str, list[str]] = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT)
        for line, word, replacement in _offences(ast.parse(path.read_text(encoding="utf-8"))):
            offences.setdefault("/".join(name.parts[:2]), []).append(f"{name}:{line}: {word!r}: say {replacement}")
    for folder, lines in offences.items():
        assert len(lines) <= ALLOWED.get(folder, 0), "\n".join(lines)


def _offences(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        for name in _defined_names(node):
            if name in NAMES:
                yield getattr(node, "lineno", 0), name, NAMES[name]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = re.sub(r"\s+", " ", node.value)
            yield from ((node.lineno, phrase, PHRASES[phrase]) for phrase in PHRASES if phrase in text)


def _defined_names(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node binds; uses of it are not counted again."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
