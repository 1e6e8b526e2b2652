"""The reference: rows of different lengths in one batch give the same logits as each row alone."""

import pytest
import torch

from workers.llm.command_line import BadInput
from workers.llm.models.model_source import load_model, load_tokenizer
from workers.llm.numerics.comparison import HELD_OUT_TEXT, take_windows
from workers.llm.numerics.reference import ReferenceModel, load_reference, pad_left


@pytest.fixture(scope="module")
def reference() -> ReferenceModel:
    return load_reference(load_model("tiny-llama", None, {}))


def test_padding_moves_before_the_tokens_and_positions_start_at_them() -> None:
    prompts, lengths = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]]), torch.tensor([4, 2])
    tokens, visible, positions = pad_left(prompts, lengths)
    assert tokens.tolist() == [[5, 6, 7, 8], [0, 0, 5, 6]]
    assert visible.tolist() == [[1, 1, 1, 1], [0, 0, 1, 1]]
    assert positions.tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]


def test_a_short_row_in_a_batch_continues_as_it_does_alone(reference: ReferenceModel) -> None:
    prompts = torch.randint(3, 512, (2, 24), generator=torch.Generator().manual_seed(0))
    tokens, logits = reference.continue_greedily(prompts, torch.tensor([24, 11]), 6)
    alone, alone_logits = reference.continue_greedily(prompts[1:, :11], torch.tensor([11]), 6)
    assert tokens[1].tolist() == alone[0].tolist()
    torch.testing.assert_close(logits[1], alone_logits[0], atol=1e-4, rtol=1e-4)


def test_losses_of_a_window_are_those_of_its_greedy_continuation(reference: ReferenceModel) -> None:
    prompts = torch.randint(3, 512, (1, 16), generator=torch.Generator().manual_seed(1))
    tokens, logits = reference.continue_greedily(prompts, torch.tensor([16]), 4)
    expected = -logits[:, :4].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(
        reference.losses(torch.cat([prompts, tokens], dim=1), 16).float(), expected, atol=1e-4, rtol=1e-4
    )


def test_the_shipped_model_knows_its_held_out_text_far_better_than_an_even_guess(reference: ReferenceModel) -> None:
    windows = take_windows(load_tokenizer(load_model("tiny-llama", None, {})), HELD_OUT_TEXT, 16, 161)
    assert reference.losses(windows, 1).mean().exp().item() < 15


def test_layers_that_the_weights_lack_are_refused_not_made_up() -> None:
    with pytest.raises(BadInput, match=r"lack model\.layers\.4"):
        load_reference(load_model("tiny-llama", None, {"num_hidden_layers": 5}))


def test_a_shape_has_nothing_to_measure_against() -> None:
    with pytest.raises(BadInput, match="no weights"):
        load_reference(load_model("shape:llama3.1-8b", None, {}))
