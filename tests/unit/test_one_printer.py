"""`orchestrator.output` is the only module that prints, so that no text gets past its escapes."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Programs: what they print goes to the process that started them, or into a log.
PROGRAMS = (
    "workers/llm/",
    "workers/machine/amdsmi_probe.py",
    "workers/machine/nvml_probe.py",
    "db/query/sqlite_program.py",
)
PRINTER = "orchestrator/output.py"
CALLS = {"print", "echo", "secho", "style", "input", "confirm", "prompt"}
STREAMS = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}
#: What a stream may be asked elsewhere.
HARMLESS = {"isatty", "flush", "fileno", "reconfigure"}
#: Streams that are passed on, not written to: alembic's configuration, and what a broken pipe closes.
PASSED_ON = {"db/connection/schema_version.py", "orchestrator/cli.py"}


def test_nothing_else_prints() -> None:
    offences = []
    for path in sorted(
        path
        for package in ("db", "haloctl", "jobs", "orchestrator", "workers")
        for path in (ROOT / package).rglob("*.py")
    ):
        name = str(path.relative_to(ROOT))
        if name != PRINTER and not name.startswith(PROGRAMS):
            offences += [
                f"{name}:{line}: {what}" for line, what in _prints(ast.parse(path.read_text()), name in PASSED_ON)
            ]
    assert offences == []


def _prints(tree: ast.AST, may_pass_on: bool) -> Iterator[tuple[int, str]]:
    harmless = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in HARMLESS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CALLS or called.startswith(("typer.echo", "typer.secho", "click.")) or called == "Console":
                yield node.lineno, called
        elif not may_pass_on and isinstance(node, ast.Attribute) and id(node) not in harmless:
            yield from ((node.lineno, stream) for stream in STREAMS if ast.unparse(node) == stream)


def test_the_check_finds_prints() -> None:
    source = "import sys\nprint(1)\ntyper.echo(2)\nsys.stderr.write('3')\nsys.stdout.isatty()\nConsole()\n"
    assert sorted(line for line, _ in _prints(ast.parse(source), may_pass_on=False)) == [2, 3, 4, 6]
