"""The objects of a remote file system below one URL, by name; whatever goes wrong with them is StorageUnusable."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jobs.errors import StorageUnusable
from workers.artifacts import file_systems
from workers.artifacts.file_systems import OBJECT_STORES, told


class Objects:
    """It is reached when it is used; threads may share it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._opened: tuple[Any, str] | None = None
        self._kind = OBJECT_STORES.get(url.partition("://")[0])

    def address(self, name: str) -> str:
        """Its URL."""
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes | None:
        """All of a small one; None where there is none."""
        fs, path = self._at(name)
        with suppress(FileNotFoundError), told(self.url):
            found: bytes = fs.cat_file(path)
            return found
        return None

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """A part of one; raises FileNotFoundError."""
        fs, path = self._at(name)
        with told(self.url):
            found: bytes = fs.cat_file(path, start=start, end=end)
            return found

    def write(self, name: str, data: bytes) -> None:
        """All at once."""
        fs, path = self._at(name)
        with told(self.url), self._in_a_bucket():
            self._make_parent(fs, path)
            fs.pipe_file(path, data)

    def send(self, file: Path, name: str) -> None:
        """A file, in a bounded part of the memory."""
        fs, path = self._at(name)
        with told(self.url), self._in_a_bucket():
            self._make_parent(fs, path)
            fs.put_file(str(file), path, **(self._kind.upload if self._kind else {}))

    def info(self, name: str) -> dict[str, Any] | None:
        """What is known of one; None where there is none."""
        fs, path = self._at(name)
        with suppress(FileNotFoundError), told(self.url):
            fs.invalidate_cache()
            found: dict[str, Any] = fs.info(path)
            return found if found["type"] == "file" else None
        return None

    def size(self, name: str) -> int | None:
        """Its bytes; None where there is none."""
        info = self.info(name)
        return None if info is None else int(info["size"])

    def listed(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """All below a name, each with what is known of it."""
        fs, path = self._at(folder)
        with suppress(FileNotFoundError), told(self.url):
            fs.invalidate_cache()
            found = fs.find(path, detail=True)
            for one, info in found.items():
                yield f"{folder}/{one.rpartition(f'{path}/')[2]}", info

    def move(self, name: str, to: str) -> None:
        """Give one another name, if it is there."""
        fs, path = self._at(name)
        _, new_path = self._at(to)
        with suppress(FileNotFoundError), told(self.url):
            self._make_parent(fs, new_path)
            fs.cp_file(path, new_path)
            fs.rm_file(path)

    def remove(self, name: str) -> None:
        """Remove one, if it is there."""
        fs, path = self._at(name)
        with suppress(FileNotFoundError), told(self.url):
            fs.rm_file(path)

    def link(self, name: str, seconds: int) -> str:
        """A URL that is signed, where it can be."""
        fs, path = self._at(name)
        try:
            return str(fs.sign(path, expiration=seconds))
        except Exception:  # by what it was opened with it can't; there are as many errors for that as file systems
            return self.address(name)

    @contextmanager
    def _in_a_bucket(self) -> Iterator[None]:
        """A context in which what is not found is what all of this should lie in."""
        try:
            yield
        except FileNotFoundError as error:
            raise StorageUnusable(file_systems.shown(self.url), "there is no such bucket or container") from error

    def _make_parent(self, fs: Any, path: str) -> None:
        """Object stores have no folders, and are not asked to make what would be a bucket."""
        if self._kind is None:
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _at(self, name: str) -> tuple[Any, str]:
        """The file system and the object's path in it."""
        with self._lock:
            if self._opened is None:
                fs, root = file_systems.opened(self.url)
                self._opened = fs, root.rstrip("/")
            fs, root = self._opened
            return fs, f"{root}/{name}"
