"""A row of the table of environment variables."""

from enum import StrEnum
from typing import NamedTuple


class Effect(StrEnum):
    """What a variable can change about a stage."""

    RESULT = "result"  #: what is computed, to the last bit, and perhaps how fast
    SPEED = "speed"  #: how fast it is computed
    NEITHER = "neither"  #: where files lie, what is logged, how long is waited


RESULT, SPEED, NEITHER = Effect


class Variable(NamedTuple):
    """A variable that stage processes may see."""

    name: str
    effect: Effect
    what_for: str
    names_file: bool = False  #: its value names files or options with such, and may run code: for a site, not for a job
