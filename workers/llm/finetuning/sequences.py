"""Training examples as sequences of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from jobs.training_data import JSON_LINES, BadTrainingData, Example, read_examples
from workers.llm.command_line import BadInput

HELD_OUT_SHARE = 0.1  #: of the sequences, the last ones, where no file is given for them
LEAST_TOKENS = 2  #: of a sequence: one to predict, and one to predict it from


@dataclass(frozen=True)
class Sequences:
    """What a file's examples become."""

    tokens: Sequence[list[int]]
    cut: int = 0  #: how many examples were longer than a sequence

    def split(self) -> tuple["Sequences", "Sequences"]:
        """Return the sequences to train on and those that are held out, the last ones."""
        count = max(int(len(self.tokens) * HELD_OUT_SHARE), 1)
        return Sequences(self.tokens[:-count], self.cut), Sequences(self.tokens[-count:])


def read_sequences(file: Path, tokenizer: Any, size: int) -> Sequences:
    """Return a file's examples as sequences of at most `size` tokens.

    A plain text is cut into sequences; an example of a .jsonl is one, cut to its size. Raises BadInput.
    """
    try:
        examples = [_tokens(example, tokenizer) for example in read_examples(file)]
    except (BadTrainingData, OSError) as problem:
        raise BadInput(f"{problem}") from None
    if file.suffix == JSON_LINES:
        sequences = [tokens[:size] for tokens in examples]
        return Sequences(_long_enough(file, sequences), sum(len(tokens) > size for tokens in examples))
    tokens = list(chain.from_iterable(examples))
    return Sequences(_long_enough(file, [tokens[start : start + size] for start in range(0, len(tokens), size)]))


def _long_enough(file: Path, sequences: Sequence[list[int]]) -> list[list[int]]:
    tokens = [sequence for sequence in sequences if len(sequence) >= LEAST_TOKENS]
    if len(tokens) < LEAST_TOKENS:
        raise BadInput(f"{file} makes {len(tokens)} sequences of tokens: give more text")
    return tokens


def _tokens(example: Example, tokenizer: Any) -> list[int]:
    """Return an example's tokens; a conversation's by the tokenizer's chat template."""
    if not example.messages:
        ids: list[int] = tokenizer(example.text, verbose=False)["input_ids"]
        return ids
    if not tokenizer.chat_template:
        raise BadInput("the data has `messages`, and the model's tokenizer has no chat template: give `text`")
    try:
        ids = tokenizer.apply_chat_template(list(example.messages), tokenize=True, return_dict=False)
    except Exception as problem:  # templates raise errors of their own
        raise BadInput(f"the model's chat template refuses an example: {problem}") from None
    return ids
