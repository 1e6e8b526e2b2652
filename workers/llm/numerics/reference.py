"""The reference that programs are measured against: transformers' own model with eager attention in float32."""

from collections.abc import Generator
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from workers.llm.command_line import BadInput
from workers.llm.models.model_source import LocalModel
from workers.llm.models.quantized_layout import read_layout
from workers.llm.numerics.distances import losses
from workers.llm.quantized.dequantized import load_dequantized

#: the plainest code of a family: that of its authors, for experts of any width
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}


def load_reference(model: LocalModel) -> "ReferenceModel":
    """Load the model with its weights as float32. Raises BadInput when they are unreadable or incomplete."""
    if model.folder and read_layout(model.config.to_dict(), model.folder):
        return ReferenceModel(load_dequantized(model))
    return ReferenceModel(load_weights(model, dtype=torch.float32, **EAGER))


def load_weights(model: LocalModel, **options: Any) -> Any:
    """Load the model with transformers. Raises BadInput when its weights are unreadable or incomplete."""
    if not model.has_weights:
        raise BadInput(f"{model.source.text} is a shape: it has no weights to run; name a model that has")
    try:
        loaded, info = AutoModelForCausalLM.from_pretrained(
            model.folder,
            config=model.config,
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
            **options,
        )
    except (OSError, SafetensorError, RuntimeError) as problem:
        raise BadInput(f"the weights in {model.folder} cannot be loaded: {problem}") from None
    if info["missing_keys"]:  # transformers would fill them with random numbers
        raise BadInput(f"the weights in {model.folder} lack {', '.join(sorted(info['missing_keys'])[:3])}")
    return loaded


class ReferenceModel:
    """A transformers model run plainly: padding on the left, a dynamic cache."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()

    @property
    def model(self) -> Any:
        """The model itself."""
        return self._model

    @property
    def vocab_size(self) -> int:
        """Number of logits for each position."""
        return int(self._model.config.get_text_config().vocab_size)

    @torch.inference_mode()
    def continue_greedily(
        self, prompts: torch.Tensor, lengths: torch.Tensor, new_tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Continue the first `lengths` [B] tokens of each prompt [B, T] with the likeliest token, `new_tokens` times.

        Returns the new tokens [B, N] and the logits [B, N + 1, V] after the prompt and after each new token.
        """
        padding = prompts.shape[1] - lengths
        tokens, visible, positions = pad_left(prompts, lengths)
        cache, logits, chosen = None, [], []
        for step in range(new_tokens + 1):
            output = self._model(
                input_ids=tokens,
                attention_mask=visible,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            logits.append(output.logits.float())
            tokens = output.logits.argmax(-1)
            chosen.append(tokens)
            visible = torch.cat([visible, torch.ones_like(tokens)], dim=1)
            positions = (prompts.shape[1] + step - padding)[:, None]
        return torch.cat(chosen[:-1], dim=1), torch.cat(logits, dim=1)

    @torch.inference_mode()
    def greedy_tokens(self, prompt: torch.Tensor) -> Generator[int]:
        """Yield the likeliest tokens after a prompt [1, T], each after those before, without end."""
        cache, tokens = None, prompt
        while True:
            output = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, tokens = output.past_key_values, output.logits.argmax(-1)
            yield int(tokens)

    @torch.inference_mode()
    def losses(self, windows: torch.Tensor, first: int) -> torch.Tensor:
        """Return the negative log likelihood [B, N - first] of each window's tokens [B, N] from index `first` on."""
        return losses(self.logits_before(windows, first), windows[:, first:])

    @torch.inference_mode()
    def choice_gaps(self, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """Return by how much the likeliest logit exceeds that of each token [B, N] from index `first` on.

        Zero where the token is the likeliest one itself.
        """
        logits = self.logits_before(tokens, first).float()
        return logits.amax(-1) - logits.gather(-1, tokens[:, first:, None])[..., 0]

    @torch.inference_mode()
    def logits_before(self, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """Return the logits [B, N - first, V] from which tokens [B, N] from index `first` on are chosen."""
        count = tokens.shape[1] - first
        logits: torch.Tensor = self._model(input_ids=tokens[:, :-1], use_cache=False, logits_to_keep=count).logits
        return logits


def pad_left(prompts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, mask and positions [B, T], with the padding of each row moved before its `lengths` tokens."""
    size = prompts.shape[1]
    padding = (size - lengths)[:, None]
    index = torch.arange(size)[None]
    tokens = prompts.gather(1, (index - padding) % size)
    return tokens, (index >= padding).long(), (index - padding).clamp(min=0)
