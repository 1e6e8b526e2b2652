"""Reasons to refuse a job file."""

from dataclasses import dataclass

from jobs.variants import Variant

Key = tuple[str | int, ...]  #: the path of a key in a YAML file: `("variants", "tp", 1)`


@dataclass(frozen=True)
class Problem:
    """Why a job can't run as its file says."""

    message: str
    keys: tuple[Key, ...]  #: the first of these keys that the file contains is to blame

    @classmethod
    def at(cls, *key: str | int, message: str) -> "Problem":
        """Return a problem that one key is to blame for."""
        return cls(message, (key,))

    @classmethod
    def of_variant(cls, variant: Variant, *axes: str, message: str) -> "Problem":
        """Return a problem that the combination of some of a variant's axes is to blame for."""
        values = ", ".join(f"{axis}: {getattr(variant, axis)}" for axis in axes)
        return cls(
            f"{message}: leave out {{{values}}} with exclude", (*(("variants", axis) for axis in axes), ("variants",))
        )
