"""What an evaluation asks of a model: how likely given tokens are, and what follows a prompt."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class GivenTokens:
    """A text of which the last tokens are scored."""

    tokens: tuple[int, ...]
    first: int  #: index of the first token that is scored, at least 1


@dataclass(frozen=True)
class Prompt:
    """Tokens that are continued with the likeliest ones."""

    tokens: tuple[int, ...]
    new_tokens: int  #: at most
    stops: tuple[str, ...]  #: texts that end an answer, and are no part of it


@dataclass(frozen=True)
class Likelihood:
    """How likely the scored tokens of a text are together."""

    logprob: float
    is_greedy: bool  #: each of them is the likeliest in its place


class Answerer(Protocol):
    """A model that answers."""

    @abstractmethod
    def score(self, texts: Sequence[GivenTokens]) -> list[Likelihood]:
        """Return how likely each text is."""

    @abstractmethod
    def generate(self, prompts: Sequence[Prompt]) -> list[str]:
        """Return the text after each prompt."""
