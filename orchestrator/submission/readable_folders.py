"""The folders whose files a job may name: all, or some where the job comes from another machine."""

from dataclasses import dataclass
from pathlib import Path

from jobs.models import RECIPES, resolve_path, shorten


@dataclass(frozen=True)
class ReadableFolders:
    """Folders with all that lies below them; None: everything, also by relative paths."""

    folders: tuple[Path, ...] | None

    def find(self, text: str, folder: Path) -> Path:
        """Return the absolute path of a file that a job in `folder` names. Raises ValueError for one outside.

        A job from another machine may name what ships with haloctl as recipes do; of other files outside of the folders
        it does not learn whether they are there.
        """
        if self.folders is None:
            return resolve_path(text, folder)
        path = resolve_path(text, RECIPES)
        if not text.startswith("/"):
            if path.is_relative_to(RECIPES) and path.exists():
                return path
            raise ValueError(f"{shorten(text)}: the path of a file of the server should be absolute")
        if not any(path.is_relative_to(folder) for folder in self.folders):
            known = ", ".join(map(str, self.folders)) or "none"
            raise ValueError(f"{shorten(text)} is not in a folder that jobs sent to this server may name: {known}")
        return path


ANYWHERE = ReadableFolders(None)
