"""Objects of a remote file system below one URL, by name; all errors become StorageUnusable."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jobs.errors import StorageUnusable
from workers.artifacts import file_systems
from workers.artifacts.file_systems import OBJECT_STORES, storage_errors


class RemoteObjects:
    """Reads, writes and lists objects below a URL. It connects on first use; threads may share it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._opened: tuple[Any, str] | None = None
        self._kind = OBJECT_STORES.get(url.partition("://")[0])

    def address(self, name: str) -> str:
        """Return an object's URL."""
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes | None:
        """Return the content of a small object; None where there is none."""
        fs, path = self._at(name)
        with suppress(FileNotFoundError), storage_errors(self.url):
            content: bytes = fs.cat_file(path)
            return content
        return None

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Return a range of an object; raises FileNotFoundError."""
        fs, path = self._at(name)
        with storage_errors(self.url):
            content: bytes = fs.cat_file(path, start=start, end=end)
            return content

    def write(self, name: str, data: bytes) -> None:
        """Write a small object."""
        fs, path = self._at(name)
        with storage_errors(self.url), self._existing_bucket():
            self._make_parent(fs, path)
            fs.pipe_file(path, data)

    def send(self, file: Path, name: str) -> None:
        """Upload a file; the memory that it takes is bounded."""
        fs, path = self._at(name)
        with storage_errors(self.url), self._existing_bucket():
            self._make_parent(fs, path)
            fs.put_file(str(file), path, **(self._kind.upload if self._kind else {}))

    def info(self, name: str) -> dict[str, Any] | None:
        """Return what the file system knows of an object; None where there is none."""
        fs, path = self._at(name)
        with suppress(FileNotFoundError), storage_errors(self.url):
            fs.invalidate_cache()
            info: dict[str, Any] = fs.info(path)
            return info if info["type"] == "file" else None
        return None

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes; None where there is none."""
        info = self.info(name)
        return None if info is None else int(info["size"])

    def list_folder(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the names of all objects below a folder, each with what the file system knows of it."""
        fs, path = self._at(folder)
        with suppress(FileNotFoundError), storage_errors(self.url):
            fs.invalidate_cache()
            for object_path, info in fs.find(path, detail=True).items():
                yield f"{folder}/{object_path.rpartition(f'{path}/')[2]}", info

    def move(self, name: str, to: str) -> None:
        """Rename an object, if it exists."""
        fs, path = self._at(name)
        _, new_path = self._at(to)
        with suppress(FileNotFoundError), storage_errors(self.url):
            self._make_parent(fs, new_path)
            fs.cp_file(path, new_path)
            fs.rm_file(path)

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""
        fs, path = self._at(name)
        with suppress(FileNotFoundError), storage_errors(self.url):
            fs.rm_file(path)

    def link(self, name: str, seconds: int) -> str:
        """Return a URL of an object, signed where the file system can do that."""
        fs, path = self._at(name)
        try:
            return str(fs.sign(path, expiration=seconds))
        except Exception:  # its credentials can't sign; each file system has its own error for that
            return self.address(name)

    @contextmanager
    def _existing_bucket(self) -> Iterator[None]:
        """A context in which FileNotFoundError means that the bucket is missing."""
        try:
            yield
        except FileNotFoundError as error:
            raise StorageUnusable(
                file_systems.store_name(self.url), "there is no such bucket or container: create it"
            ) from error

    def _make_parent(self, fs: Any, path: str) -> None:
        """Create the parent folder, except in object stores, where that would be a bucket."""
        if self._kind is None:
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _at(self, name: str) -> tuple[Any, str]:
        """Return the file system and the object's path in it."""
        with self._lock:
            if self._opened is None:
                fs, root = file_systems.open_file_system(self.url)
                self._opened = fs, root.rstrip("/")
            fs, root = self._opened
            return fs, f"{root}/{name}"
