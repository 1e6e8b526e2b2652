"""The log of a daemon (head, node or agent): a line for each message, with time, level and the ids that it is about.

    2026-11-22T18:34:58.123Z warning head: node n1 is down
    {"at": "2026-11-22T18:34:58.123Z", "level": "warning", "daemon": "head", "message": "node n1 is down", "node": "n1"}

Modules log with the adapter that `logger` returns: `logger(__name__).info("...", node="n1")`. A process that is no
daemon drops what they log. Credentials are masked, and hidden characters escaped.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from jobs.errors import HaloError
from jobs.masking import mask_userinfo
from jobs.plain_text import escape_hidden, one_line

JSON_VARIABLE = "HALOCTL_LOG_JSON"  #: set to 1 for lines of JSON
PACKAGES = ("orchestrator", "workers", "db", "jobs")  #: whose messages are logged from `info` on, others from `warning`
IDS = ("job", "task", "attempt", "node", "term")  #: what a message may be about
FILE_BYTES = 10 << 20
OLD_FILES = 3

logging.getLogger("orchestrator").addHandler(logging.NullHandler())  # commands tell people what they need to know


class DaemonLogger(logging.LoggerAdapter[logging.Logger]):
    """Takes the ids that a message is about as keyword arguments."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Move the ids to where the formatters expect them."""
        ids = {name: value for name in IDS if (value := kwargs.pop(name, None)) is not None}
        return msg, {**kwargs, "extra": {"ids": _with_parents(ids)}}


def logger(name: str) -> DaemonLogger:
    """Return the logger of a module."""
    return DaemonLogger(logging.getLogger(name))


def configure(daemon: str, *, is_json: bool = False, file: Path | None = None) -> None:
    """Have this process log as a daemon: to stderr, or to a file, which is rotated.

    It logs JSON if it is asked to, or if the environment says so; a node's agent inherits that.
    """
    if is_json:
        os.environ[JSON_VARIABLE] = "1"
    is_json = os.environ.get(JSON_VARIABLE) == "1"
    handler = logging.StreamHandler() if file is None else _open(file)
    handler.setFormatter((JsonFormatter if is_json else TextFormatter)(daemon))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.INFO)
    logging.raiseExceptions = False  # a full disk takes messages, and nothing else


@contextmanager
def logged_to_the_end(name: str) -> Iterator[None]:
    """Log the error that ends a daemon, and exit with its code."""
    try:
        yield
    except HaloError as error:
        logger(name).error("%s", error)
        raise SystemExit(error.exit_code) from error
    except Exception as error:
        logger(name).critical("a bug ended it: %s: %s", type(error).__name__, error, exc_info=True)
        raise SystemExit(HaloError.exit_code) from error


def _open(file: Path) -> logging.Handler:
    """Return a handler of a file; of stderr where the file can't be written."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8")
    except OSError:
        return logging.StreamHandler()


def _with_parents(ids: Mapping[str, Any]) -> dict[str, Any]:
    """Add the task of an attempt and the job of a task, with which their ids begin."""
    complete = dict(ids)
    for name, parent in (("attempt", "task"), ("task", "job")):
        if name in complete:
            complete.setdefault(parent, complete[name].rpartition("-")[0])
    return complete


class _DaemonFormatter(logging.Formatter):
    def __init__(self, daemon: str) -> None:
        super().__init__()
        self._daemon = daemon

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        at = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        return {
            "at": f"{at.isoformat(timespec='milliseconds')}Z",
            "level": record.levelname.lower(),
            "daemon": self._daemon,
            "message": one_line(mask_userinfo(record.getMessage())),
            **getattr(record, "ids", {}),
        }

    def _traceback(self, record: logging.LogRecord) -> str:
        return mask_userinfo(self.formatException(record.exc_info)) if record.exc_info else ""


class TextFormatter(_DaemonFormatter):
    """Formats messages for people: ids that the message names are not repeated, and a traceback is indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, and those of a traceback."""
        fields = self._fields(record)
        message = fields["message"]
        ids = "".join(f" {name}={fields[name]}" for name in IDS if name in fields and f"{fields[name]}" not in message)
        lines = escape_hidden(self._traceback(record), keep="\n").splitlines()
        head = f"{fields['at']} {fields['level']} {self._daemon}: {message}{one_line(ids)}"
        return "\n  ".join([head, *lines])


class JsonFormatter(_DaemonFormatter):
    """Formats messages for programs: an object in each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        traceback = self._traceback(record)
        return json.dumps(self._fields(record) | ({"traceback": traceback} if traceback else {}), default=str)
