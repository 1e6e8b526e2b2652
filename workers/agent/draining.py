"""The request to drain a node, as two files in its data folder: `drain`, which says how, and `drained` when it is done.

`haloctl node` writes the first and waits for the second, which the node's agent writes when it runs nothing and has no
result that the leader has not stored.
"""

from enum import StrEnum
from pathlib import Path


class Drain(StrEnum):
    """What happens to the attempts that run on a node that leaves."""

    FINISH = "finish"  #: they run to their ends
    REQUEUE = "requeue"  #: they are ended, for other nodes to run


def request(data: Path, drain: Drain) -> None:
    """Have the agent start nothing new, and mark the node as drained when nothing is left."""
    _drained(data).unlink(missing_ok=True)
    part = data / "drain.part"
    part.write_text(drain)
    part.replace(data / "drain")


def requested(data: Path) -> Drain | None:
    """Return how the node is to be drained; None where it is not."""
    try:
        return Drain((data / "drain").read_text())
    except (FileNotFoundError, ValueError):
        return None


def mark_drained(data: Path) -> None:
    """Record that nothing is left on this node."""
    _drained(data).touch()


def is_drained(data: Path) -> bool:
    """Whether the agent has marked the node as drained since the latest request."""
    return _drained(data).exists()


def withdraw(data: Path) -> None:
    """Withdraw the request: the node stays, or is back."""
    (data / "drain").unlink(missing_ok=True)
    _drained(data).unlink(missing_ok=True)


def _drained(data: Path) -> Path:
    return data / "drained"
