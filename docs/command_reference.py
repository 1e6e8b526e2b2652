"""The page `reference/commands`: the help of every command, written when the site is built."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from orchestrator import cli


def write(page: Path) -> None:
    """Write the page as Markdown."""
    page.write_text("\n".join(_lines()) + "\n", encoding="utf-8")


def _lines() -> Iterator[str]:
    yield "# Commands\n"
    yield "`haloctl COMMAND -h` prints the same text. Answers go to stdout, everything else to stderr.\n"
    cli.add_commands(())
    root: Any = get_command(cli.app)
    for name, command in root.commands.items():
        yield from _section(command, f"haloctl {name}", 2)


def _section(command: Any, path: str, level: int) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True, max_content_width=100)
    yield f"{'#' * level} {path}\n"
    yield f"```text\n{command.get_help(context)}\n```\n"
    for name, sub in getattr(command, "commands", {}).items():
        yield from _section(sub, f"{path} {name}", level + 1)
