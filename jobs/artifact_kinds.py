"""The kinds of files that tasks make, and who reads each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ArtifactKind:
    """One kind of file."""

    is_input: bool = True  #: later stages read it, so its digest is part of their tasks' identities
    is_reported: bool = False  #: `haloctl report` links to it


ARTIFACT_KINDS: dict[str, ArtifactKind] = {
    "adapter": ArtifactKind(is_input=False),
    "config": ArtifactKind(is_reported=True),
    "dump": ArtifactKind(is_input=False),  # it says how the program was made, and follows from what that follows from
    "flags": ArtifactKind(),
    "irpa": ArtifactKind(is_reported=True),
    "log": ArtifactKind(is_input=False),  # logs and reports contain times, which differ between equal runs
    "mlir": ArtifactKind(is_reported=True),
    "profile": ArtifactKind(is_input=False),
    "report": ArtifactKind(is_input=False),
    "scores": ArtifactKind(),
    "table": ArtifactKind(),
    "tokenizer": ArtifactKind(),
    "vmfb": ArtifactKind(is_reported=True),
    "weights": ArtifactKind(),
}


def is_input(kind: str) -> bool:
    """Return whether later stages read files of this kind; those of kinds that are not in the table count as read."""
    return kind not in ARTIFACT_KINDS or ARTIFACT_KINDS[kind].is_input


def reported_kinds() -> list[str]:
    """Return the kinds of files that reports link to."""
    return [name for name, kind in ARTIFACT_KINDS.items() if kind.is_reported]
