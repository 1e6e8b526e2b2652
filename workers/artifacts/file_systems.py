"""Remote file systems by way of fsspec: how they are opened, and what their errors mean."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jobs.errors import DISK_FULL_ERRNOS, ArtifactLost, StorageUnusable

MIB = 1 << 20
MESSAGE_CHARACTERS = 300
QUERY = re.compile(r"\?[^\s'\"<>]+")  #: of a URL: where signatures are


@dataclass(frozen=True)
class FileSystemKind:
    """The particulars of a protocol."""

    extra: str  #: haloctl's extra that installs what the protocol needs
    options: Mapping[str, Any] = field(default_factory=dict)  #: for opening the file system
    upload: Mapping[str, Any] = field(
        default_factory=dict
    )  #: for uploading a file: they bound the memory that it takes


_S3 = FileSystemKind(
    "s3",
    {
        "use_listings_cache": False,
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 60,
            "retries": {"max_attempts": 2, "mode": "standard"},
        },
    },
    {"chunksize": 16 * MIB, "max_concurrency": 4},
)
_AZURE = FileSystemKind(
    "azure", {"use_listings_cache": False, "connection_timeout": 10, "read_timeout": 60}, {"max_concurrency": 4}
)
_GOOGLE = FileSystemKind("gcs", {"use_listings_cache": False}, {"chunksize": 16 * MIB})

#: Protocols without folders. Others have folders, and need nothing but what fsspec brings.
OBJECT_STORES = {"s3": _S3, "s3a": _S3, "az": _AZURE, "abfs": _AZURE, "abfss": _AZURE, "gs": _GOOGLE, "gcs": _GOOGLE}


def open_file_system(url: str) -> tuple[Any, str]:
    """Return the file system at a URL, and the path in it; raises StorageUnusable."""
    protocol = url.partition("://")[0]
    kind = OBJECT_STORES.get(protocol)
    with storage_errors(url):
        from fsspec.core import url_to_fs

        try:
            file_system, path = url_to_fs(url, **(kind.options if kind else {}))
        except ImportError as error:
            remedy = f"pip install 'haloctl[{kind.extra}]'" if kind else str(error)
            raise StorageUnusable(store_name(url), f"{protocol}:// needs another package: {remedy}") from error
    return file_system, path


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """A context that turns a file system's errors into StorageUnusable.

    FileNotFoundError, FileExistsError and a full disk of this machine stay what they are.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageUnusable, ArtifactLost):
        raise
    except Exception as error:  # each file system has errors of its own: botocore's, azure's, aiohttp's, google's
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            raise
        raise StorageUnusable(store_name(url), _describe(error)) from error


def store_name(url: str) -> str:
    """Return the store's name in messages."""
    return f"artifact store {url}"


def modified_at(info: Mapping[str, Any]) -> datetime:
    """Return when a file was last written, from its file system's `info`."""
    for name in ("LastModified", "last_modified", "updated", "mtime", "created"):
        value = info.get(name)
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str) and value:
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    return datetime.now(UTC)  # a file without a time never counts as old


def _describe(error: Exception) -> str:
    """Describe an error in one line, without signatures."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = QUERY.sub("?...", " ".join(text.split())) or type(error).__name__
    if isinstance(error, PermissionError):
        line = f"access denied ({line}): check that the environment has credentials that may read and write"
    if isinstance(error, OSError) and error.errno and not error.strerror:
        line = f"{line} ({os.strerror(error.errno)})"
    return line if len(line) <= MESSAGE_CHARACTERS else f"{line[: MESSAGE_CHARACTERS - 3]}..."
