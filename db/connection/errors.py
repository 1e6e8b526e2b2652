"""Errors of databases as one line with the remedy; it never holds a password."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from jobs.errors import BadSetting, DatabaseReadOnly, DatabaseUnreachable

VARIABLE = "HALOCTL_DATABASE_URL"
EXPECTED = "should be sqlite:///FILE or postgresql://USER@HOST/NAME"
BUSY_TIMEOUT_S = 30

#: By the start of SQLite's own name of the error. Every other error of SQLite is a bug of ours.
SQLITE_REASONS = {
    "SQLITE_FULL": "the disk is full; make room and run the command again",
    "SQLITE_IOERR": "it can't be read or written: the disk is full or broken; make room and run the command again",
    "SQLITE_NOTADB": f"that file is not a SQLite database; move it away, or name another in {VARIABLE}",
    "SQLITE_CORRUPT": "the file is damaged; put a backup in its place, or move it away to start anew",
    "SQLITE_READONLY": f"it can't be written; change the file's and its folder's mode, or name another in {VARIABLE}",
    "SQLITE_CANTOPEN": f"it can't be opened; check that its folder is there and can be written, or set {VARIABLE}",
    "SQLITE_PERM": f"it can't be opened; check that its folder is there and can be written, or set {VARIABLE}",
    "SQLITE_BUSY": f"another process has kept it locked for {BUSY_TIMEOUT_S} s; end it, or try again",
}

#: By the start of its SQLSTATE, what a server refuses without being out of reach: no permission, read only.
REFUSALS = ("25006", "28", "3D", "42501", "53", "57")

#: By its SQLSTATE, what this user may not do: in a transaction or server that only reads, or without the privilege.
DENIED = ("25006", "42501")

SECRETS = ("password", "passfile", "sslpassword", "sslkey")


def parse(url: str) -> URL:
    """Read a database's URL; raises BadSetting."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # such as a port that is no number
        raise BadSetting(VARIABLE, f"it is not a URL; it {EXPECTED}") from None  # not shown: it may hold a password
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise BadSetting(VARIABLE, f"{parsed.drivername} is not supported; it {EXPECTED}")
    if parsed.drivername == "sqlite" and (parsed.query or parsed.database in (None, "", ":memory:")):
        raise BadSetting(VARIABLE, f"{display_name(parsed)} names no file; it {EXPECTED}")
    return parsed if parsed.drivername == "sqlite" else _with_password(parsed)


def _with_password(url: URL) -> URL:
    """Return a URL with the password that the driver would read from the environment, which a head clears."""
    password = os.environ.get("PGPASSWORD")
    return url.set(password=password) if password and url.password is None else url


def mask(text: str) -> str:
    """Return a text without the passwords of the URLs in it."""
    text = re.sub(r"(://[^:/@\s]*):[^\s]*@", r"\1:***@", text)
    return re.sub(rf"\b({'|'.join(SECRETS)})=[^&\s]+", r"\1=***", text)


def display_name(url: URL) -> str:
    """Return the name of a database for messages, without its password."""
    if url.drivername == "sqlite" and url.database:
        return f"database {url.database}"
    return f"database {mask(url.render_as_string(hide_password=True))}"


@contextmanager
def translate_errors(url: URL) -> Iterator[None]:
    """Convert the driver's errors about an unusable database to DatabaseUnreachable; other errors pass through."""
    try:
        yield
    except DBAPIError as error:
        reason = reason_of(error)
        if reason is None:
            raise
        kind = DatabaseReadOnly if _is_denied(error.orig) else DatabaseUnreachable
        raise kind(display_name(url), reason) from error
    except (ImportError, NoSuchModuleError) as error:
        reason = "the Postgres driver is missing: pip install 'haloctl[postgres]'"
        raise DatabaseUnreachable(display_name(url), reason) from error


@contextmanager
def translate_driver_errors(url: URL, driver: Any) -> Iterator[None]:
    """Convert the errors of a driver that is used without SQLAlchemy as `translate_errors` does."""
    try:
        yield
    except driver.Error as error:
        state = getattr(error, "sqlstate", None) or ""
        if not isinstance(error, driver.OperationalError) and not state.startswith(REFUSALS):
            raise
        kind = DatabaseReadOnly if _is_denied(error) else DatabaseUnreachable
        raise kind(display_name(url), mask(" ".join(str(error).split()))) from error


def _is_denied(error: object) -> bool:
    """Whether the database works, but this user may not do that."""
    name, state = getattr(error, "sqlite_errorname", None), getattr(error, "sqlstate", None)
    return (name or "").startswith("SQLITE_READONLY") or (state or "").startswith(DENIED)


def reason_of(error: DBAPIError) -> str | None:
    """Return why a database can't be used; None if the error is not the database's fault."""
    name = getattr(error.orig, "sqlite_errorname", None)
    if name is not None:
        return next((reason for start, reason in SQLITE_REASONS.items() if name.startswith(start)), None)
    state = getattr(error.orig, "sqlstate", None) or ""
    is_connecting = error.statement is None and not state  # the driver refuses an option of the URL
    if (
        is_connecting
        or isinstance(error, OperationalError)
        or error.connection_invalidated
        or state.startswith(REFUSALS)
    ):
        return mask(" ".join(str(error.orig).split()))
    return None
