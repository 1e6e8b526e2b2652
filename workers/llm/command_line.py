"""Shared by all stage programs: the command-line arguments that name a model, and errors as exit codes."""

import argparse
import errno
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_PEERS_LOST = 75  #: sysexits' EX_TEMPFAIL: the program itself is not at fault
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BadInput(Exception):
    """The user's input is invalid; the message says what to change."""


class ProgramFailed(Exception):
    """The program cannot continue; the message says why. A traceback has been printed where the failure happened."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)
        self.message, self.exit_code = message, exit_code


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--model`, `--revision` and `--override`."""
    parser.add_argument("--model", required=True, help="shipped name, folder, hub id or shape:NAME")
    parser.add_argument("--revision", help="of a hub model")
    parser.add_argument("--override", nargs="*", action="extend", default=[], metavar="KEY=VALUE")


def add_generation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a program that times whole generations: the workload, repetitions and the report's file."""
    parser.add_argument("--batch", type=positive_int, required=True)
    parser.add_argument("--prompt-tokens", type=positive_int, required=True)
    parser.add_argument("--new-tokens", type=positive_int, required=True, help="of each row, the first one included")
    parser.add_argument("--repetitions", type=positive_int, required=True, help="warm-up included")
    parser.add_argument("--report", type=Path, required=True)


def positive_int(text: str) -> int:
    """Parse a command-line argument as a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """Parse `key=value` items into config values; a value that is not JSON is a string."""
    overrides: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise BadInput(f"--override {item}: expected KEY=VALUE, such as num_hidden_layers=2")
        overrides[key] = _json_or_text(value)
    return overrides


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def run(main: Callable[[], None], *, has_children: bool = False) -> NoReturn:
    """Run a program and exit: with 0 on success, 2 and one line on bad input, or the exit code of a ProgramFailed.

    Any other exception is a bug and keeps its traceback. On success the process ends at once: threads of torch's and
    IREE's runtimes may still run, and a destructor that meets one aborts the process, although its work is done. Only
    a program that `has_children` exits as usual, since handlers at its exit end them.
    """
    warnings.filterwarnings("ignore", module=r"torch\.|transformers\.")
    try:
        main()
    except BadInput as problem:
        _refuse(str(problem))
    except ProgramFailed as problem:
        _refuse(problem.message, problem.exit_code)
    except OSError as problem:
        if problem.errno not in NO_SPACE:
            raise
        at = problem.filename or "an output"
        _refuse(f"{at} could not be written: {problem.strerror}; free some space, or raise the limit, and retry")
    if has_children:
        sys.exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def os_errors_naming(path: Path) -> Iterator[None]:
    """Name `path` in an OSError raised inside, since errors of an open file name none."""
    try:
        yield
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from problem


def peak_rss_bytes() -> int:
    """Return the most resident memory that this process has had.

    getrusage's value is not it: on Linux it begins with the memory of the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def write_text(path: Path, text: str) -> None:
    """Write a file that appears under its name only when it is complete; an OSError names the file."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with os_errors_naming(path):
            partial.write_text(text)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; an OSError names the file."""
    with os_errors_naming(path):
        path.write_text(json.dumps(value, indent=1, default=str))


def _refuse(message: str, exit_code: int = EXIT_BAD_INPUT) -> NoReturn:
    sys.stdout.flush()
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(exit_code)
