"""Answers of the reference: the model in torch, eager and in f32, one text at a time."""

from collections.abc import Sequence
from contextlib import closing
from itertools import islice

import torch

from workers.llm.evaluation.answers import Answerer, GivenTokens, Likelihood, Prompt
from workers.llm.numerics.reference import ReferenceModel
from workers.llm.serving.texts import TextCodec


class ReferenceAnswers(Answerer):
    """The answers of the reference."""

    def __init__(self, reference: ReferenceModel, codec: TextCodec) -> None:
        self._reference, self._codec = reference, codec

    def score(self, texts: Sequence[GivenTokens]) -> list[Likelihood]:
        """Return how likely each text is."""
        return [self._score(text) for text in texts]

    def _score(self, text: GivenTokens) -> Likelihood:
        tokens = torch.tensor([text.tokens])
        logprobs = self._reference.logits_before(tokens, text.first)[0].double().log_softmax(-1)
        scored = tokens[0, text.first :]
        chosen = logprobs.gather(1, scored[:, None])
        return Likelihood(float(chosen.sum()), bool((logprobs.argmax(-1) == scored).all()))

    def generate(self, prompts: Sequence[Prompt]) -> list[str]:
        """Return the text after each prompt."""
        return [self._generate(prompt) for prompt in prompts]

    def _generate(self, prompt: Prompt) -> str:
        stream, text = self._codec.stream(prompt.tokens, prompt.stops), ""
        with closing(self._reference.greedy_tokens(torch.tensor([prompt.tokens]))) as tokens:
            for token in islice(tokens, prompt.new_tokens):
                if token in self._codec.stop_tokens:
                    break
                text += stream.add(token)
                if stream.is_stopped:
                    return text
        return text + stream.end()
