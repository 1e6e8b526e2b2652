"""The search for the first bad one of an ordered list of toolchains. Pure.

Both ends are probed first. What can't be judged is skipped as `git bisect skip` does it: its neighbours are probed
instead, and where only skipped ones are left between good and bad, all of them are suspects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType


class Mark(StrEnum):
    """The mark of a candidate, in the terms of `git bisect`."""

    GOOD = "good"  #: the predicate does not hold
    BAD = "bad"  #: it holds
    SKIP = "skip"  #: it can't be judged


REMEDIES = {
    Mark.BAD: "name an older one that is good, or ask for something else with --when",
    Mark.GOOD: "name a newer one that is bad, or ask for something else with --when",
}


@dataclass(frozen=True)
class BisectionResult:
    """The end of a search; `problem` says why it failed."""

    first_bad: str | None = None  #: set where there is only one suspect
    last_good: str | None = None
    suspects: tuple[str, ...] = ()  #: the candidates among which the first bad one is, in their order
    problem: str = ""


@dataclass(frozen=True)
class BisectionSearch:
    """The state of a search. The first of `candidates` is expected to be good, the last one bad."""

    candidates: tuple[str, ...]
    marks: Mapping[str, Mark] = field(default_factory=lambda: MappingProxyType({}))

    def marked(self, candidate: str, mark: Mark) -> "BisectionSearch":
        """Return the search with one more mark."""
        return replace(self, marks=MappingProxyType({**self.marks, candidate: mark}))

    @property
    def next_candidate(self) -> str | None:
        """The candidate to probe next; None when there is a result."""
        for end in (self.candidates[0], self.candidates[-1]):
            if self._problem():
                return None
            if end not in self.marks:
                return end
        if self._problem():
            return None
        good, bad = self._bounds()
        unknown = [index for index in range(good + 1, bad) if self.candidates[index] not in self.marks]
        middle = (good + bad) / 2
        return self.candidates[min(unknown, key=lambda index: abs(index - middle))] if unknown else None

    @property
    def result(self) -> BisectionResult | None:
        """The result; None while there is a candidate to probe."""
        if self.next_candidate is not None:
            return None
        if problem := self._problem():
            return BisectionResult(problem=problem)
        good, bad = self._bounds()
        suspects = self.candidates[good + 1 : bad + 1]
        return BisectionResult(suspects[0] if len(suspects) == 1 else None, self.candidates[good], suspects)

    def _bounds(self) -> tuple[int, int]:
        """Return the indices of the last good and the first bad one; both ends are marked."""
        marks = [(index, self.marks.get(name)) for index, name in enumerate(self.candidates)]
        bad = min(index for index, mark in marks if mark is Mark.BAD)
        return max(index for index, mark in marks if mark is Mark.GOOD and index < bad), bad

    def _problem(self) -> str:
        """Say why an end does not have the mark that is expected of it."""
        for name, expected in ((self.candidates[0], Mark.GOOD), (self.candidates[-1], Mark.BAD)):
            mark = self.marks.get(name, expected)
            if mark is Mark.SKIP:
                return f"{name} should be {expected}, and can't be judged: name another one"
            if mark is not expected:
                return f"{name} should be {expected}, and is {mark}: {REMEDIES[mark]}"
        return ""
