"""The artifact store: files named by their sha256, so that equal ones are kept once and none ever changes."""

import hashlib
import os
import re
import shutil
from pathlib import Path
from uuid import uuid4

from jobs.errors import StorageUnusable
from jobs.task import Artifact

SHA256 = re.compile(r"[0-9a-f]{64}")
READ_ONLY = 0o444


class ArtifactStore:
    """Files below a root folder, at `sha256/<first two digits>/<sha256>`; safe for any number of writers."""

    def __init__(self, root: Path) -> None:
        """Raises StorageUnusable where it can't be made or written."""
        self.root = root.absolute()
        try:
            (self.root / "sha256").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageUnusable(f"artifact store {root}", f"{error.strerror}; choose another data folder") from error
        if not os.access(self.root / "sha256", os.W_OK | os.X_OK):
            raise StorageUnusable(f"artifact store {root}", "it can't be written; choose another data folder")

    def put(self, file: Path, kind: str, name: str | None = None) -> Artifact:
        """Publish a finished file, which becomes read-only; raises OSError and leaves nothing when the disk is full."""
        with file.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
            artifact = Artifact(name or file.name, kind, sha256, os.fstat(content.fileno()).st_size)
        if not self.has(artifact):
            self._publish(file, self.path(sha256))
        return artifact

    def path(self, sha256: str) -> Path:
        """Where a file with this digest lies, whether it is there or not."""
        if not SHA256.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is no sha256")
        return self.root / "sha256" / sha256[:2] / sha256

    def has(self, artifact: Artifact) -> bool:
        """Whether it is there with the right size."""
        try:
            return self.path(artifact.sha256).stat().st_size == artifact.size_bytes
        except FileNotFoundError:
            return False

    def verify(self, artifact: Artifact) -> bool:
        """Whether it is there and its content is what its name says; reads all of it."""
        if not self.has(artifact):
            return False
        with self.path(artifact.sha256).open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == artifact.sha256

    def place(self, artifact: Artifact, destination: Path) -> None:
        """Make it appear at `destination`: a hard link, on another file system a symbolic one.

        Raises FileNotFoundError when the store does not have it, or has it with another size.
        """
        source = self.path(artifact.sha256)
        if not self.has(artifact):
            raise FileNotFoundError(2, "not in the artifact store, or damaged there", str(source))
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            destination.hardlink_to(source)
        except FileExistsError:
            raise
        except OSError:  # another file system, one without hard links, or a file of another user
            destination.symlink_to(source)

    def _publish(self, file: Path, destination: Path) -> None:
        """Put the file where its digest says, whole or not at all; a damaged one there is replaced."""
        destination.parent.mkdir(exist_ok=True)
        part = destination.parent / f".{uuid4().hex}.part"
        try:
            _link_or_copy(file, part)
            part.chmod(READ_ONLY)
            part.replace(destination)
        finally:
            part.unlink(missing_ok=True)


def _link_or_copy(file: Path, destination: Path) -> None:
    try:
        destination.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, destination)
