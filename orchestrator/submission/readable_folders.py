"""The folders whose files a job may name: all, or some where the job comes from another machine."""

from dataclasses import dataclass
from pathlib import Path

from jobs.models import resolve_path, shorten


@dataclass(frozen=True)
class ReadableFolders:
    """Folders with all that lies below them; None: everything, also by relative paths."""

    folders: tuple[Path, ...] | None

    def expect(self, text: str) -> None:
        """Raise ValueError for a path outside of the folders; it does not tell whether anything is there."""
        if self.folders is None:
            return
        if not text.startswith("/"):
            raise ValueError(f"{shorten(text)}: the path of a file of the server should be absolute")
        path = resolve_path(text, Path("/"))
        if not any(path.is_relative_to(folder) for folder in self.folders):
            known = ", ".join(map(str, self.folders)) or "none"
            raise ValueError(f"{shorten(text)} is not in a folder that jobs sent to this server may name: {known}")


ANYWHERE = ReadableFolders(None)
