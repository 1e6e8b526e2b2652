"""The command line `haloctl`: its commands and its exit codes."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import StringIO
from typing import Annotated, Any

import typer
from typer.exceptions import Abort, TyperException

from jobs.errors import DISK_FULL_ERRNOS, HaloError, UserError
from orchestrator import output

INTERRUPTED_EXIT_CODE = 130
DISK_FULL_EXIT_CODE = 6

#: In the order of `haloctl --help`: the module of each below `orchestrator.commands`, whose function has its name.
COMMANDS = {
    "submit": "jobs.submit",
    "list": "jobs.list_jobs",
    "show": "jobs.show",
    "logs": "jobs.logs",
    "why": "jobs.why",
    "events": "site.events",
    "wait": "jobs.wait",
    "cancel": "jobs.cancel",
    "serve": "jobs.serve",
    "retry": "jobs.retry",
    "matrix": "results.matrix",
    "results": "results.results",
    "query": "results.query",
    "compare": "results.compare",
    "numerics": "results.numerics",
    "kernels": "results.kernels",
    "profile": "results.profile",
    "trend": "results.trend",
    "report": "results.report",
    "usage": "results.usage",
    "reproduce": "reruns.reproduce",
    "verify": "reruns.verify",
    "bisect": "reruns.bisect",
    "head": "site.head",
    "node": "site.node",
    "web": "site.web",
}

#: Groups of commands, listed after the others: the module of each, whose `app` it is.
GROUPS = {
    "schedule": "jobs.schedule",
    "targets": "results.targets",
    "import": "results.imports",
    "artifacts": "artifacts.artifacts",
    "nodes": "site.nodes",
    "toolchains": "site.toolchains",
    "tokens": "site.tokens",
    "db": "site.database",
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
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        output.print_line(_version())
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        output.print_text(f"{ctx.get_help()}\n")


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("haloctl")
    except metadata.PackageNotFoundError:
        return "a checkout that is not installed"


def main() -> None:
    """Run one command, then exit; an expected error is one message on stderr and an exit code."""
    exit_code = _run()
    gc.freeze()  # the interpreter's last collection takes a fifth of a command, and the process ends anyway
    sys.exit(exit_code)


def _run() -> int:
    if not all(map(_is_text, sys.argv)):
        return _report(
            "an argument is not text in UTF-8: rename the file, or give the name as it is", UserError.exit_code
        )
    try:
        exit_code = _run_typer()
        sys.stdout.flush()
        return exit_code
    except HaloError as error:
        return _report(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _report("interrupted", INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:  # `haloctl results | head`
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        path = error.filename or "the disk"
        return _report(f"{path}: no space left; free some and run the command again", DISK_FULL_EXIT_CODE)


def _run_typer() -> int:
    """Run the command with typer; a wrong command line is printed as typer words it."""
    add_commands(sys.argv[1:2])
    try:
        return app(prog_name="haloctl", standalone_mode=False) or 0
    except TyperException as error:
        return _report_command_line(error)
    except Abort:
        return _report("aborted", 1)
    except SystemExit as exit_request:  # of rich, for a broken pipe
        if isinstance(exit_request.__context__, BrokenPipeError):
            raise exit_request.__context__ from None
        return exit_request.code if isinstance(exit_request.code, int) else 0


def _report_command_line(error: Any) -> int:
    text = StringIO()
    error.show(text)
    output.print_prompt(text.getvalue())
    return int(error.exit_code)


def add_commands(arguments: Sequence[str]) -> None:
    """Import the command that `arguments` names, or else all commands, for help and for suggestions."""
    names = (*COMMANDS, *GROUPS)
    for name in [name for name in names if name in arguments] or names:
        module = import_module(f"orchestrator.commands.{COMMANDS.get(name) or GROUPS[name]}")
        if name in COMMANDS:
            app.command(name)(getattr(module, COMMANDS[name].rpartition(".")[2]))
        else:
            app.add_typer(module.app, name=name)


def _is_text(argument: str) -> bool:
    """Return whether an argument's bytes were UTF-8; the others stand in it as lone surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _report(message: str, exit_code: int) -> int:
    output.print_error(f"haloctl: {message}")
    return exit_code


if __name__ == "__main__":
    main()
