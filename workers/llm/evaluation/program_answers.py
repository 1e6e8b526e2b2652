"""Answers of a compiled program, computed by the engine that serves it: many texts at a time, in any order."""

import asyncio
from collections.abc import Sequence

from workers.llm.command_line import EXIT_FAILED, BadInput
from workers.llm.command_line import ProgramFailed as CommandFailed
from workers.llm.evaluation.answers import Answerer, GivenTokens, Likelihood, Prompt
from workers.llm.serving.choices import Choice, ChoicePart
from workers.llm.serving.engine import Engine, Refused
from workers.llm.serving.generation import OutputSpreader, ProgramFailed, generate, joined
from workers.llm.serving.paged_program import PagedProgram
from workers.llm.serving.sequences import SamplingOptions, TokenSequence
from workers.llm.serving.texts import TextCodec


class ProgramAnswers(Answerer):
    """The answers of one program."""

    def __init__(self, program: PagedProgram, codec: TextCodec) -> None:
        self._codec, self._runner = codec, asyncio.Runner()
        self._engine = Engine(program, OutputSpreader(self._runner.get_loop()))
        self._engine.start()

    def score(self, texts: Sequence[GivenTokens]) -> list[Likelihood]:
        """Return how likely each text is. Raises BadInput for one that does not fit in the cache."""
        options = SamplingOptions(logprobs=1)
        sequences = [TokenSequence(text.tokens, 0, options, is_scored=True) for text in texts]
        return [_likelihood(text, part) for text, part in zip(texts, self._answers(sequences), strict=True)]

    def generate(self, prompts: Sequence[Prompt]) -> list[str]:
        """Return the text after each prompt. Raises BadInput for one that does not fit in the cache."""
        ends = self._codec.stop_tokens
        sequences = [TokenSequence(prompt.tokens, prompt.new_tokens, stop_tokens=ends) for prompt in prompts]
        return [part.text for part in self._answers(sequences, [prompt.stops for prompt in prompts])]

    def _answers(
        self, sequences: Sequence[TokenSequence], stops: Sequence[tuple[str, ...]] | None = None
    ) -> list[ChoicePart]:
        """Return what became of each sequence, all of which the engine has at once."""
        choices = [
            Choice(index, sequence, self._codec.stream(sequence.prompt, ends), wants_logprobs=sequence.is_scored)
            for index, (sequence, ends) in enumerate(zip(sequences, stops or [()] * len(sequences), strict=True))
        ]
        if not choices:
            return []
        try:
            for sequence in sequences:
                self._engine.check(sequence)
            whole = self._runner.run(joined(generate(self._engine, choices)))
        except Refused as problem:
            raise BadInput(f"a text of a task does not fit: {problem}; give a longer workload") from None
        except ProgramFailed as problem:
            raise CommandFailed(f"the program failed: {problem}", EXIT_FAILED) from None
        return [whole[index] for index in range(len(choices))]


def _likelihood(text: GivenTokens, part: ChoicePart) -> Likelihood:
    known = [logprob for logprob in part.logprobs[text.first :] if logprob]
    is_greedy = all(logprob.top[0][0] == token for logprob, token in zip(known, text.tokens[text.first :], strict=True))
    return Likelihood(sum(logprob.logprob for logprob in known), is_greedy)
