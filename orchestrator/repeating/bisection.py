"""Which of an ordered list of toolchains is the first bad one: a search that is told verdicts. Pure.

Both ends are looked at first. What can't be judged is skipped as `git bisect skip` does it: its neighbours are asked
instead, and where only skipped ones are left between good and bad, all of them are suspects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType


class Verdict(StrEnum):
    """What a probe says."""

    GOOD = "good"  #: what is asked for does not hold
    BAD = "bad"  #: it does
    SKIP = "skip"  #: it can't be told


@dataclass(frozen=True)
class Answer:
    """What a search came to; `problem` says in words why it has none."""

    first_bad: str | None = None  #: set where there is one suspect alone
    last_good: str | None = None
    suspects: tuple[str, ...] = ()  #: those among which the first bad one is, in their order
    problem: str = ""


@dataclass(frozen=True)
class Search:
    """A search as far as it has come. The first of `candidates` is to be good, the last one bad."""

    candidates: tuple[str, ...]
    verdicts: Mapping[str, Verdict] = field(default_factory=lambda: MappingProxyType({}))

    def told(self, candidate: str, verdict: Verdict) -> "Search":
        """The search that knows one verdict more."""
        return replace(self, verdicts=MappingProxyType({**self.verdicts, candidate: verdict}))

    @property
    def next(self) -> str | None:
        """Whom to ask now; None when there is an answer."""
        for end in (self.candidates[0], self.candidates[-1]):
            if self._problem():
                return None
            if end not in self.verdicts:
                return end
        if self._problem():
            return None
        good, bad = self._bounds()
        unknown = [index for index in range(good + 1, bad) if self.candidates[index] not in self.verdicts]
        middle = (good + bad) / 2
        return self.candidates[min(unknown, key=lambda index: abs(index - middle))] if unknown else None

    @property
    def answer(self) -> Answer | None:
        """What it came to; None while somebody is to be asked."""
        if self.next is not None:
            return None
        if problem := self._problem():
            return Answer(problem=problem)
        good, bad = self._bounds()
        suspects = self.candidates[good + 1 : bad + 1]
        return Answer(suspects[0] if len(suspects) == 1 else None, self.candidates[good], suspects)

    def _bounds(self) -> tuple[int, int]:
        """Where the last good and the first bad one stand, both ends being known."""
        judged = [(index, self.verdicts.get(name)) for index, name in enumerate(self.candidates)]
        bad = min(index for index, verdict in judged if verdict is Verdict.BAD)
        return max(index for index, verdict in judged if verdict is Verdict.GOOD and index < bad), bad

    def _problem(self) -> str:
        """Why an end is not what it was said to be."""
        wanted = ((self.candidates[0], Verdict.GOOD), (self.candidates[-1], Verdict.BAD))
        for name, verdict in wanted:
            found = self.verdicts.get(name, verdict)
            if found is Verdict.SKIP:
                return f"{name} was said to be {verdict}, and can't be judged: name another one"
            if found is not verdict:
                return f"{name} was said to be {verdict}, and is {found}: {REMEDIES[found]}"
        return ""


REMEDIES = {
    Verdict.BAD: "name an older one that is good, or ask for something else with --when",
    Verdict.GOOD: "name a newer one that is bad, or ask for something else with --when",
}
