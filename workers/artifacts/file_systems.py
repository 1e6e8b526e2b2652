"""Remote file systems as fsspec knows them: how they are opened, and what goes wrong with them."""

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
class Kind:
    """What is particular to a protocol."""

    extra: str  #: of haloctl, that brings what the protocol needs
    options: Mapping[str, Any] = field(default_factory=dict)  #: for opening it
    upload: Mapping[str, Any] = field(default_factory=dict)  #: for one file: memory is bounded by these


_S3 = Kind(
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
_AZURE = Kind(
    "azure", {"use_listings_cache": False, "connection_timeout": 10, "read_timeout": 60}, {"max_concurrency": 4}
)
_GOOGLE = Kind("gcs", {"use_listings_cache": False}, {"chunksize": 16 * MIB})

#: Where there are no folders to be made. Other protocols have them, and need nothing but what fsspec brings.
OBJECT_STORES = {"s3": _S3, "s3a": _S3, "az": _AZURE, "abfs": _AZURE, "abfss": _AZURE, "gs": _GOOGLE, "gcs": _GOOGLE}


def opened(url: str) -> tuple[Any, str]:
    """The file system at a URL, and the path in it; raises StorageUnusable."""
    protocol = url.partition("://")[0]
    kind = OBJECT_STORES.get(protocol)
    with told(url):
        from fsspec.core import url_to_fs

        try:
            found: tuple[Any, str] = url_to_fs(url, **(kind.options if kind else {}))
        except ImportError as error:
            remedy = f"pip install 'haloctl[{kind.extra}]'" if kind else str(error)
            raise StorageUnusable(shown(url), f"{protocol}:// needs a package that is not here: {remedy}") from error
    return found


@contextmanager
def told(url: str) -> Iterator[None]:
    """A context in which whatever goes wrong with a file system becomes StorageUnusable.

    But for FileNotFoundError, and for a full disk of this machine.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageUnusable, ArtifactLost):
        raise
    except Exception as error:  # each file system has errors of its own: botocore's, azure's, aiohttp's, google's
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            raise
        raise StorageUnusable(shown(url), _in_words(error)) from error


def shown(url: str) -> str:
    """What messages call the store."""
    return f"artifact store {url}"


def moment(info: Mapping[str, Any]) -> datetime:
    """When a file was last written, by what its file system says of it."""
    for name in ("LastModified", "last_modified", "updated", "mtime", "created"):
        found = info.get(name)
        if isinstance(found, int | float):
            return datetime.fromtimestamp(found, UTC)
        if isinstance(found, str) and found:
            found = datetime.fromisoformat(found)
        if isinstance(found, datetime):
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found
    return datetime.now(UTC)  # what says nothing is never old


def _in_words(error: Exception) -> str:
    """One line, without signatures."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = QUERY.sub("?...", " ".join(said.split())) or type(error).__name__
    if isinstance(error, PermissionError):
        line = f"access denied ({line}): are its credentials in the environment, and do they allow to read and write?"
    if isinstance(error, OSError) and error.errno and not error.strerror:
        line = f"{line} ({os.strerror(error.errno)})"
    return line if len(line) <= MESSAGE_CHARACTERS else f"{line[: MESSAGE_CHARACTERS - 3]}..."
