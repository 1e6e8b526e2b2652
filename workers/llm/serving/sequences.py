"""What a server computes for one prompt: its tokens, how the next ones are chosen, and where it stands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from workers.llm.serving.hashing import seed_of_position


class FinishReason(StrEnum):
    """Why a sequence has ended, in the words of OpenAI's API."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class SamplingOptions:
    """How each next token is chosen from its logits."""

    temperature: float = 0.0  #: 0: the likeliest token
    top_k: int = 0  #: 0: of all tokens
    top_p: float = 1.0
    seed: int = 0
    logprobs: int | None = None  #: how many likeliest tokens are told with each token; None: no log probabilities


@dataclass(frozen=True)
class TokenLogprob:
    """The log probability of a token, beside the likeliest tokens in its place."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Output:
    """What a step of the engine made of one sequence."""

    token: int | None  #: None where it only ended, or only its prompt was scored
    finish: FinishReason | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  #: of scored tokens of the prompt, from the second one on
    message: str = ""  #: of an error


@dataclass(eq=False)
class TokenSequence:
    """One prompt with what has been generated after it. Only the engine's thread changes it once it is queued."""

    prompt: Sequence[int]
    max_new_tokens: int
    options: SamplingOptions = SamplingOptions()
    stop_tokens: frozenset[int] = frozenset()
    is_scored: bool = False  #: log probabilities of its prompt are wanted
    take: Callable[[Output], None] = lambda output: None  #: gets each output, in the caller's own thread
    number: int = 0  #: in the order of arrival
    tokens: list[int] = field(default_factory=list)  #: prompt and generated ones
    cached: int = 0  #: the first of `tokens` whose keys and values are in the cache
    blocks: list[int] = field(default_factory=list)  #: of the cache, first to last
    block_keys: list[bytes] = field(default_factory=list)  #: of the whole blocks that its tokens fill
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  #: of those that have been scored
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet; the last one's logits give the next token."""
        return len(self.tokens) - self.cached

    @property
    def generated(self) -> int:
        """How many new tokens there are."""
        return len(self.tokens) - len(self.prompt)

    @property
    def unscored(self) -> int:
        """Tokens of the prompt that a scoring call has still to take: all but the last, whose successor is new."""
        return len(self.prompt) - 1 - self.cached if self.is_scored else 0

    @property
    def most_tokens(self) -> int:
        """Tokens at its end, if nothing stops it before."""
        return len(self.prompt) + self.max_new_tokens

    def release(self) -> list[int]:
        """Forget what is in the cache; return the blocks. An unfinished score is repeated."""
        blocks, self.blocks, self.cached = self.blocks, [], 0
        self.prompt_logprobs.clear()
        return blocks

    @property
    def step_seed(self) -> int:
        """Seed of the next token's choice: the same wherever and however often the sequence is computed."""
        return seed_of_position(self.options.seed, len(self.tokens))
