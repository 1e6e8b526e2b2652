"""A node's wish to leave, as two files in its data folder: `drain`, which says how, and `drained` once nothing is left.

`haloctl node` writes the first and waits for the second, which the node's agent writes when it has nothing that runs
and no result that the head has not stored.
"""

from enum import StrEnum
from pathlib import Path


class Drain(StrEnum):
    """What becomes of the attempts that run on a node that leaves."""

    FINISH = "finish"  #: they run to their ends
    HAND_BACK = "hand_back"  #: they are ended, for other nodes to run


def ask(data: Path, how: Drain) -> None:
    """Have the agent start nothing new, and say when nothing is left."""
    _drained(data).unlink(missing_ok=True)
    part = data / "drain.part"
    part.write_text(how)
    part.replace(data / "drain")


def asked(data: Path) -> Drain | None:
    """What was asked for, if anything."""
    try:
        return Drain((data / "drain").read_text())
    except (FileNotFoundError, ValueError):
        return None


def tell_done(data: Path) -> None:
    """Nothing is left on this node."""
    _drained(data).touch()


def is_done(data: Path) -> bool:
    """Whether the agent has said so since it was last asked."""
    return _drained(data).exists()


def withdraw(data: Path) -> None:
    """The node stays, or is back."""
    (data / "drain").unlink(missing_ok=True)
    _drained(data).unlink(missing_ok=True)


def _drained(data: Path) -> Path:
    return data / "drained"
