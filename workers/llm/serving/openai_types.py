"""The bodies of requests, as OpenAI's API and vLLM's additions to it name their fields.

Fields that nobody knows are ignored, as those servers do; those that would change the answer, and that this server does
not know how to follow, are refused (`UNSUPPORTED`).
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from workers.llm.serving.hashing import SEED_BITS

MAX_CHOICES = 128  #: of one request: prompts times `n`
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_LOGPROBS = 20  #: as OpenAI's

#: fields that change the answer and are not followed, with the value that leaves it as it is
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "use_beam_search": (False,),
}

TokenIds = list[Annotated[int, Field(ge=0, strict=True)]]
Text = Annotated[str, Field(strict=True)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class StreamOptions(BaseModel):
    """What a stream tells beside its tokens."""

    include_usage: bool = False


class GenerationBody(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str = ""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: TokenIds = []
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False

    @model_validator(mode="after")
    def _is_supported(self) -> "GenerationBody":
        for name, value in (self.model_extra or {}).items():
            if value is not None and name in UNSUPPORTED and value not in UNSUPPORTED[name]:
                raise ValueError(f"{name} is not supported: leave it out")
        return self

    @property
    def stops(self) -> list[str]:
        """The texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])


class CompletionBody(GenerationBody):
    """A request to continue prompts."""

    prompt: Text | TokenIds | Annotated[list[Text | TokenIds], Field(min_length=1, max_length=MAX_CHOICES)]
    max_tokens: Annotated[int, Field(ge=0)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = False

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, whether one or several were given."""
        prompt = self.prompt
        if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
            return [prompt]  # type: ignore[list-item]
        return list(prompt)


class ChatMessage(BaseModel):
    """One message of a conversation; its content may come in parts of text."""

    model_config = ConfigDict(extra="allow")

    role: Text
    content: Text | list[dict[str, Any]] | None = None


class ChatBody(GenerationBody):
    """A request to answer a conversation."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0


def seed_of_choice(seed: int, choice: int) -> int:
    """Return the seed of one of a request's choices."""
    return (seed + choice) % (1 << SEED_BITS)
