"""The kinds of values that options of other people's tools have in a job file. None of them can be a path."""

import re
from dataclasses import dataclass

WORD = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.,:+-]{0,199}")  #: no slash, no blank, nothing that a shell reads
WHOLE = re.compile(r"-?[0-9]{1,15}")
NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?(e-?[0-9]{1,2})?")


@dataclass(frozen=True)
class Kind:
    """The values that an option may have."""

    description: str
    pattern: re.Pattern[str]
    is_optional: bool = False  #: the option may stand without a value

    def allows(self, value: str | None) -> bool:
        """Return whether the option may have a value; None: it has none."""
        return self.is_optional if value is None else self.pattern.fullmatch(value) is not None


SWITCH = Kind("true or false", re.compile("true|false|0|1"), is_optional=True)
COUNT = Kind("a whole number", WHOLE)
REAL = Kind("a number", NUMBER)
LEVEL = Kind("O0, O1, O2 or O3", re.compile("O[0-3]"))
NAME = Kind("a name without blanks or slashes", WORD)
EITHER = Kind("a name, a number, true or false", WORD, is_optional=True)  #: of options that a site adds


def choice(*words: str) -> Kind:
    """Return the kind of an option with a few values."""
    return Kind(f"one of {', '.join(words)}", re.compile("|".join(map(re.escape, words))))
