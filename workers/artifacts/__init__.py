"""The artifact store: files named by their sha256, so that equal ones are kept once and none ever changes."""

from workers.artifacts.backend import Soundness, Stored
from workers.artifacts.locations import Location
from workers.artifacts.store import ArtifactStore

__all__ = ["ArtifactStore", "Location", "Soundness", "Stored"]
