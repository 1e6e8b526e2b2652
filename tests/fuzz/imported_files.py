"""Files to import: databases, results of vLLM and IREE, trackers' pages and targets, with something wrong in them."""

import gzip
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from db.connection.engine import open_database
from db.store import Store
from db.writes import transfer
from tests.fuzz.file_contents import CELLS, CONTENTS, GOOD_TARGET, HEADS, NAMES, TARGET_KEYS
from tests.fuzz.harness import Case
from tests.fuzz.nasty_values import JSON_VALUES
from tests.stored_jobs import submit, succeed
from tests.unit.orchestrator.test_imports import IREE, LATENCY, SERVED, THROUGHPUT

DATABASES = ("empty sqlite", "empty postgres")
START = datetime(2025, 11, 21, 12, tzinfo=UTC)
RUNS: list[Any] = list(IREE["benchmarks"])
PLACEHOLDER = "(a value)"
VARIANT = ("--variant", "llama3.1-8B-FP8-TP8", "--target", "mi300x")
SIZES = ("--batch", "1", "--prompt-tokens", "8", "--new-tokens", "8", "--date", "2024-10-25")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("import", "vllm", "file.json", *VARIANT, *SIZES),
    "iree": ("import", "iree", "file.json", *VARIANT),
    "page": ("import", "tracker", "file.md", "--target", "mi300x", *SIZES),
    "table": ("import", "tracker", "file.csv", "--target", "mi300x", *SIZES),
    "targets page": ("targets", "import", "file.md", "--source", "x"),
    "targets table": ("targets", "import", "file.csv", "--source", "x"),
    "targets": ("targets", "import", "file.json", "--source", "x"),
    "database": ("db", "import", "file.jsonl"),
    "compressed database": ("db", "import", "file.gz"),
}
FILES = {name: next(part for part in argv if part.startswith("file.")) for name, argv in COMMANDS.items()}

CHANGED_VALUES = 60  #: of a database
DAMAGED_FILES = 12  #: compressed ones


def cases(chance: random.Random) -> Iterator[Case]:
    """Yield all files, for both databases."""
    for name, kind, content in (*_contents(), *_results(), *_pages(), *_targets(), *_databases(chance)):
        yield from _on_both(f"{kind}: {name}", kind, content)
    for name, prepare in STRANGE_FILES.items():
        for kind in ("vllm", "page", "targets", "database", "compressed database"):
            yield from _on_both(f"{kind}: {name}", kind, None, prepare)


Content = tuple[str, str, bytes]  #: a name, a key of COMMANDS, and what the file holds


def _on_both(
    name: str, kind: str, content: bytes | None, prepare: Callable[[Path], None] | None = None
) -> Iterator[Case]:
    for database in DATABASES:
        made = (lambda folder, make=prepare: make(folder / FILES[kind])) if prepare else None
        files = {} if content is None else {FILES[kind]: content}
        yield Case(f"{name}, {database}", COMMANDS[kind], files, made, database=database)


#: What is no plain file.
STRANGE_FILES: Mapping[str, Callable[[Path], None]] = {
    "missing": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to /proc/self/mem": lambda path: path.symlink_to("/proc/self/mem"),
    "a sparse file of 1 TiB": lambda path: _sparse(path),
}


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _contents() -> Iterator[Content]:
    for kind in COMMANDS:
        for name, content in CONTENTS.items():
            yield name, kind, content


def _with(document: Any, value: str) -> bytes:
    """Return a document as JSON, with a text of JSON where it has the placeholder."""
    return json.dumps(document).replace(json.dumps(PLACEHOLDER), value).encode("utf-8", "surrogatepass")


def _results() -> Iterator[Content]:
    used = (
        "date",
        "completed",
        "total_input_tokens",
        "max_concurrency",
        "itls",
        "median_itl_ms",
        "std_ttft_ms",
        "backend",
    )
    for name, value in JSON_VALUES.items():
        for key in used:
            yield f"{key} is {name}", "vllm", _with({**SERVED, key: PLACEHOLDER}, value)
        yield f"latencies has {name}", "vllm", _with({**LATENCY, "latencies": [1.0, PLACEHOLDER]}, value)
        yield f"the rate is {name}", "vllm", _with({**THROUGHPUT, "requests_per_second": PLACEHOLDER}, value)
        first, *rest = RUNS
        for key in ("name", "real_time", "time_unit", "repetition_index", "run_type"):
            yield f"{key} is {name}", "iree", _with({**IREE, "benchmarks": [{**first, key: PLACEHOLDER}, *rest]}, value)
        yield f"the date is {name}", "iree", _with({**IREE, "context": {"date": PLACEHOLDER}}, value)
        yield f"the context is {name}", "iree", _with({**IREE, "context": PLACEHOLDER}, value)
        yield f"the benchmarks are {name}", "iree", _with({**IREE, "benchmarks": PLACEHOLDER}, value)


def _pages() -> Iterator[Content]:
    for cell in CELLS:
        rows = (("Item", "IREE numeric", "10/25/24", "Target"), (NAMES[0], cell, cell, cell))
        yield from _tables(f"the cell {cell[:20]!r}", rows)
    for name in NAMES:
        yield from _tables(f"the name {name[:40]!r}", (("Item", "IREE numeric", "10/25/24"), (name, "PASS", "(1, 2)")))
    for head in HEADS:
        yield from _tables(f"the heading {head!r}", (("Item", head), (NAMES[0], "PASS"), (NAMES[1], "(1, 2)")))


def _tables(name: str, rows: tuple[tuple[str, ...], ...]) -> Iterator[Content]:
    rule = ("---",) * len(rows[0])
    page = "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], rule, *rows[1:])).encode()
    table = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows).encode()
    yield name, "page", page
    yield name, "targets page", page
    yield name, "table", table


def _targets() -> Iterator[Content]:
    for name, value in JSON_VALUES.items():
        for key in TARGET_KEYS:
            yield f"{key} is {name}", "targets", _with([{**GOOD_TARGET, key: PLACEHOLDER}], value)
    for key in TARGET_KEYS:
        for cell in CELLS[::4]:
            row = {**GOOD_TARGET, key: cell}
            table = f"{','.join(row)}\n{','.join(map(str, row.values()))}\n"
            yield f"{key} is {cell[:20]!r}", "targets table", table.encode()


@cache
def exported_lines() -> tuple[str, ...]:
    """Return the lines of a database with a job."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_database(f"sqlite:///{folder}/haloctl.db", create=True) as database,
    ):
        store = Store(database, lambda: START)
        succeed(store, f"{submit(store)}-01")
        return tuple(transfer.export_lines(database))


def _databases(chance: random.Random) -> Iterator[Content]:
    lines = exported_lines()
    text = "".join(lines).encode()
    yield "as it was exported", "database", text
    yield "as it was exported", "compressed database", gzip.compress(text)
    for name, other_lines in _other_lines(list(lines)):
        yield name, "database", "".join(other_lines).encode("utf-8", "surrogatepass")
    values = [*JSON_VALUES.values(), '"../../x"', '"a\\u0000b"', '"[5]"', '"{\\"a\\": NaN}"', '"' + "[" * 9000 + '"']
    for _ in range(CHANGED_VALUES):
        number = chance.randrange(1, len(lines) - 1)
        row = json.loads(lines[number])
        place, value = chance.randrange(1, len(row)), chance.choice(values)
        row[place] = PLACEHOLDER
        parts = ("".join(lines[:number]).encode(), _with(row, value), b"\n", "".join(lines[number + 1 :]).encode())
        yield f"value {place} of a row of {row[0]} is {value[:30]}", "database", b"".join(parts)
    compressed = gzip.compress(text)
    for _ in range(DAMAGED_FILES):
        place = chance.randrange(len(compressed))
        flipped = bytes([compressed[place] ^ 1 << chance.randrange(8)])
        yield f"cut at {place}", "compressed database", compressed[:place]
        yield f"flipped at {place}", "compressed database", compressed[:place] + flipped + compressed[place + 1 :]
    yield "with a tail", "compressed database", compressed + b"tail"
    yield "twice", "compressed database", compressed + compressed
    yield "of a long line", "compressed database", gzip.compress(b"a" * (32 << 20))
    yield "of many rows", "compressed database", gzip.compress(text[: text.index(b"\n") + 1] + b"[]\n" * (1 << 20))


def _other_lines(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    head = json.loads(lines[0])
    yield "without its end", lines[:-1]
    yield "without its head", lines[1:]
    yield "with its end twice", [*lines, lines[-1]]
    yield "in another order", [lines[0], *reversed(lines[1:-1]), lines[-1]]
    yield "with a row twice", [*lines[:2], lines[1], *lines[2:]]
    yield "with an empty line", [*lines[:2], "\n", *lines[2:]]
    yield "with CRLF", [line.replace("\n", "\r\n") for line in lines]
    for number in range(1, len(lines) - 1, max(1, len(lines) // 8)):
        yield f"without line {number}", lines[:number] + lines[number + 1 :]
    for key, value in (
        ("format", 1),
        ("schema", "0001"),
        ("schema", 7),
        ("schema", None),
        ("tables", {}),
        ("tables", []),
    ):
        yield f"with the {key} {value!r}", [json.dumps({**head, key: value}) + "\n", *lines[1:]]
    for row in (
        "[]",
        "[1]",
        "[[]]",
        '[{"a": 1}, 2]',
        '["jobs"]',
        '["haloctl_schema", "0001"]',
        '["sqlite_master"]',
        '["a;b"]',
    ):
        yield f"with the row {row}", [*lines[:-1], row + "\n", lines[-1]]
    for end in ('{"rows": null}', '{"rows": []}', "{}", '{"rows": {"jobs": 1e400}}', '{"rows": {"jobs": -1}}'):
        yield f"with the end {end}", [*lines[:-1], end + "\n"]
