"""The command line: `haloctl`. Knows the commands, the exit codes and nothing else."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from jobs.errors import DISK_FULL_ERRNOS, HaloError

INTERRUPTED = 130
NEW_OBJECTS = 200_000  #: between two looks for garbage: imports make many objects, and no garbage
NO_SPACE = 6

#: In the order of `haloctl --help`, each with its module among `orchestrator.commands`, called as its function is.
COMMANDS = {
    "submit": "submit",
    "list": "list_jobs",
    "show": "show",
    "logs": "logs",
    "why": "why",
    "wait": "wait",
    "cancel": "cancel",
    "retry": "retry",
    "matrix": "matrix",
    "results": "results",
    "query": "query",
    "compare": "compare",
    "trend": "trend",
    "report": "report",
    "reproduce": "reproduce",
    "verify": "verify",
    "bisect": "bisect",
    "head": "head",
    "node": "node",
}

#: Commands that have commands of their own, listed after the others, each with the module whose `app` it is.
GROUPS = {
    "schedule": "schedule",
    "targets": "targets",
    "import": "imports",
    "artifacts": "artifacts",
    "nodes": "nodes",
    "toolchains": "toolchains",
    "db": "database",
}

app = typer.Typer(
    name="haloctl",
    help="Takes LLMs from checkpoint to a matrix of compiled, checked and timed variants on shared GPU nodes.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and end."),
) -> None:
    if version:
        typer.echo(_version())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("haloctl")
    except metadata.PackageNotFoundError:
        return "a checkout that is not installed"


def main() -> None:
    """Run one command; every error that haloctl raises on purpose is one message on stderr and its exit code."""
    gc.set_threshold(NEW_OBJECTS)
    code = _run()
    gc.freeze()  # what is left ends with the process: looking through all of it once more takes a fifth of a command
    sys.exit(code)


def _run() -> int:
    try:
        code = _command()
        sys.stdout.flush()
        return code
    except HaloError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `haloctl results | head`
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        return _fail(f"{error.filename or 'the disk'}: no space is left; make room and run the command again", NO_SPACE)


def _command() -> int:
    """Let typer run the command: it tells by itself what is wrong with a command line.

    It and rich make an exit code of a reader who left; raises BrokenPipeError then.
    """
    _add_commands(sys.argv[1:2])
    try:
        app(prog_name="haloctl")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else 0
    return 0


def _add_commands(asked: Sequence[str]) -> None:
    """Import the one that is asked for; where it is none of them, all, for help and for what a wrong name is like."""
    wanted = [name for name in (*COMMANDS, *GROUPS) if name in asked] or [*COMMANDS, *GROUPS]
    for name in wanted:
        module = import_module(f"orchestrator.commands.{COMMANDS.get(name) or GROUPS[name]}")
        if name in COMMANDS:
            app.command(name)(getattr(module, COMMANDS[name]))
        else:
            app.add_typer(module.app, name=name)


def _fail(message: str, code: int) -> int:
    typer.echo(f"haloctl: {message}", err=True)
    return code


if __name__ == "__main__":
    main()
