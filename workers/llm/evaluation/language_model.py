"""lm-evaluation-harness's interface to a model that answers: between texts and tokens.

A text that is longer than the program's cache is cut at its beginning, for the program and the reference alike.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from workers.llm.command_line import BadInput
from workers.llm.evaluation.answers import Answerer, GivenTokens, Prompt

SAMPLING = ("do_sample", "temperature", "top_p", "top_k")
GENERATION = ("until", "max_gen_toks", *SAMPLING)  #: options of a task's generation


class AnsweringModel(TemplateLM):  # type: ignore[misc]
    """A model with its tokenizer."""

    def __init__(self, answerer: Answerer, tokenizer: Any, max_tokens: int, new_tokens: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.cut = 0  #: texts that were too long
        self._answerer, self._max_tokens, self._new_tokens = answerer, max_tokens, new_tokens

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text without context."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else int(begin)

    @property
    def tokenizer_name(self) -> str:
        """What lm-evaluation-harness calls the tokenizer."""
        return str(self.tokenizer.name_or_path)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a conversation as the model's own chat template writes it."""
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return a text's tokens, with those that the tokenizer puts before a text that does not have them yet."""
        begin = self.tokenizer.bos_token
        if add_special_tokens is None and begin and string.startswith(begin):
            add_special_tokens = False
        options = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer(string, verbose=False, **options).input_ids)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        texts = [self._given(context, continuation) for _, context, continuation in requests]
        return [(answer.logprob, answer.is_greedy) for answer in self._answerer.score(texts)]

    def _given(self, context: list[int], continuation: list[int]) -> GivenTokens:
        if not 0 < len(continuation) < self._max_tokens:
            raise BadInput(
                f"a choice of a task has {len(continuation)} tokens; it needs at least one, and fewer than the "
                f"{self._max_tokens} of the workload"
            )
        tokens = self._fitting([*context, *continuation], self._max_tokens)
        return GivenTokens(tokens, len(tokens) - len(continuation))

    def _fitting(self, tokens: list[int], most: int) -> tuple[int, ...]:
        self.cut += len(tokens) > most
        return tuple(tokens[-most:])

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log probability of whole texts, in windows that follow each other."""
        windows = [list(self._windows(*request.args)) for request in requests]
        answers = iter(self._loglikelihood_tokens([window for text in windows for window in text]))
        return [sum(next(answers)[0] for _ in text) for text in windows]

    def _windows(self, text: str) -> Iterator[tuple[None, list[int], list[int]]]:
        tokens = self.tok_encode(text, add_special_tokens=False)
        for window in get_rolling_token_windows(tokens, self.prefix_token_id, self._max_tokens - 1, 1):
            yield (None, *make_disjoint_window(window))

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text after each context, up to one of the texts that end it."""
        return self._answerer.generate([self._prompt(*request.args) for request in requests])

    def _prompt(self, context: str, options: dict[str, Any]) -> Prompt:
        if unknown := options.keys() - set(GENERATION):
            raise BadInput(f"generation_kwargs: {', '.join(sorted(unknown))} is not among {', '.join(GENERATION)}")
        if options.get("do_sample") or options.get("temperature"):
            raise BadInput("generation_kwargs: answers are the likeliest tokens: leave do_sample and temperature out")
        new_tokens, until = options.get("max_gen_toks", self._new_tokens), options.get("until") or []
        if not (isinstance(new_tokens, int) and 0 < new_tokens < self._max_tokens):
            raise BadInput(
                f"generation_kwargs: max_gen_toks {new_tokens} should be a number below the {self._max_tokens} tokens "
                "of the workload: give more prompt_tokens or new_tokens"
            )
        stops = [until] if isinstance(until, str) else until
        tokens = self._fitting(self.tok_encode(context), self._max_tokens - new_tokens)
        return Prompt(tokens, new_tokens, tuple(filter(None, stops)))
