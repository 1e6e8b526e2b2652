"""What every stage program shares: how a model is named on its command line, and how bad input is refused."""

import argparse
import errno
import gc
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from workers.llm import USUAL

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_PEERS_LOST = 75  #: sysexits' EX_TEMPFAIL: nothing was wrong with the program
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BadInput(Exception):
    """What the user gave cannot be worked with; the message says what and what to do."""


class Failed(Exception):
    """A program can't go on; the message says why, and the traceback was printed where it happened."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)
        self.message, self.exit_code = message, exit_code


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--model`, `--revision` and `--override`, which mean the same in every program."""
    parser.add_argument("--model", required=True, help="shipped name, folder, hub id or shape:NAME")
    parser.add_argument("--revision", help="of a hub model")
    parser.add_argument("--override", nargs="*", action="extend", default=[], metavar="KEY=VALUE")


def add_generation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a program that times whole generations is told: one workload, how often, and where to report."""
    parser.add_argument("--batch", type=positive, required=True)
    parser.add_argument("--prompt-tokens", type=positive, required=True)
    parser.add_argument("--new-tokens", type=positive, required=True, help="of each row, the first one included")
    parser.add_argument("--repetitions", type=positive, required=True, help="warm-up included")
    parser.add_argument("--report", type=Path, required=True)


def positive(text: str) -> int:
    """A whole number from 1, of a command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """Turn `key=value` items into config values; a value is JSON where it parses as JSON, else a string."""
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


def run(main: Callable[[], None], *, is_in_iree: bool = False) -> NoReturn:
    """Run a program: exit 0 when done, 2 with one message on bad input, or as it failed; a bug keeps its traceback.

    `is_in_iree`: it runs modules in IREE's runtime, whose bindings take what is never collected for leaks of theirs.
    """
    warnings.filterwarnings("ignore", module=r"torch\.|transformers\.")
    gc.freeze()  # what was imported stays until the end: looking through it, then too, takes as long as importing it
    gc.set_threshold(*USUAL)
    try:
        main()
    except BadInput as problem:
        _refuse(str(problem))
    except Failed as problem:
        _refuse(problem.message, problem.exit_code)
    except OSError as problem:
        if problem.errno not in NO_SPACE:
            raise
        at = problem.filename or "an output"
        _refuse(f"{at} could not be written: {problem.strerror}; free some space, or raise the limit, and retry")
    finally:
        if is_in_iree:
            gc.unfreeze()
    sys.exit(0)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make an OSError say which file it was about; writes to an open file do not."""
    try:
        yield
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from problem


def _refuse(message: str, exit_code: int = EXIT_BAD_INPUT) -> NoReturn:
    sys.stdout.flush()
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(exit_code)
