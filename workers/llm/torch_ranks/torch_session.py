"""A transformers model on its ranks: split by its own tensor-parallel plan, with a static KV cache.

Limits of transformers 5.23 and torch 2.13: the plan needs accelerate to be installed; subgroups of a device mesh wait
30 minutes for a lost peer (`workers.llm.torch_ranks.rank_process` limits them); the mesh uses the accelerator that
torch was built for, even where an attempt's devices are the host's cores. Every collective of llama's plan runs on
gloo.
"""

import time
from argparse import Namespace
from itertools import product
from typing import Any

import torch
import torch._dynamo  # a static cache imports it
import torch.distributed.tensor  # and so does a split model
from transformers import StaticCache
from transformers.distributed import DistributedConfig
from transformers.utils.logging import disable_progress_bar

from workers.llm.command_line import BadInput, parse_overrides
from workers.llm.models.model_source import load_model
from workers.llm.numerics.reference import load_weights, pad_left
from workers.llm.sharding.split_problems import rank_problems
from workers.llm.torch_ranks.rank import TorchRank
from workers.llm.torch_ranks.torch_compile import compile_model
from workers.llm.weights.meta_model import DTYPES


def entry_points(args: Namespace) -> dict[str, Any]:
    """Return the batch sizes, prompt lengths and prefills of the session, as in an exported program's config.json."""
    return {
        "batch_sizes": sorted(args.batch),
        "prompt_tokens": sorted(args.prompt_tokens),
        "entry_points": [
            {"name": f"prefill_bs{batch}_t{tokens}", "kind": "prefill", "batch": batch, "prompt_tokens": tokens}
            for batch, tokens in product(sorted(args.batch), sorted(args.prompt_tokens))
        ],
    }


def open_session(rank: TorchRank, args: Namespace) -> "TorchSession":
    """Load this rank's shard of the model. Raises BadInput when the model cannot be split or loaded."""
    started = time.monotonic()
    disable_progress_bar()
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    for problem in rank_problems(model.config.get_text_config(), True, args.tp):
        raise BadInput(problem.reason)
    options: dict[str, Any] = {"dtype": DTYPES[args.precision], "attn_implementation": args.attention}
    if args.tp > 1:
        _use_device_for_meshes(rank.torch_device)
        options["distributed_config"] = DistributedConfig(tp_size=args.tp)
    loaded = load_weights(model, **options)
    loaded = loaded if args.tp > 1 else loaded.to(rank.torch_device)
    return TorchSession(loaded, rank.torch_device, args, time.monotonic() - started)


def _use_device_for_meshes(device: torch.device) -> None:
    """Make transformers use this type of device: it takes the accelerator that torch was built for."""
    if torch._C._get_accelerator().type != device.type:
        torch._C._get_accelerator = lambda check=False: torch.device(device.type)


class TorchSession:
    """The model on one rank; all ranks make the same calls. A prefill starts a new batch.

    Rows of different lengths end at the same slot of the cache: padding is on the left, as in transformers.
    """

    def __init__(self, model: Any, device: torch.device, args: Namespace, load_s: float) -> None:
        self.load_s = load_s
        self.program = entry_points(args)
        self._model, self._device = model.eval(), device
        self._is_compiled = args.compile is not None
        self._call = compile_model(self._model, args.compile, args.inductor) if self._is_compiled else self._model
        self._cache_tokens = max(args.prompt_tokens) + args.new_tokens
        self._ranks = args.tp
        self._cache: Any = None
        self._visible = torch.zeros(0)
        self._filled = 0  #: slots of the cache

    def prefill(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return logits, float32 [B, 1, V], after the last of each row's `lengths` [B] tokens [B, T]."""
        batch, prompt = tokens.shape
        tokens, visible, positions = pad_left(tokens, lengths)
        # as long as the cache: a growing mask would be another shape to compile for in each step
        self._visible = torch.zeros(batch, self._cache_tokens, dtype=visible.dtype)
        self._visible[:, :prompt] = visible
        self._filled = prompt
        self._cache = self.new_cache(batch, self._cache_tokens)
        return self._logits(tokens, positions)

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return logits, float32 [B, 1, V], after one more token [B, 1] at `positions` [B], which count from 0."""
        self._visible[:, self._filled] = 1
        self._filled += 1
        return self._logits(tokens, positions[:, None])

    @torch.inference_mode()
    def new_cache(self, batch: int, tokens: int) -> Any:
        """Return an empty cache; the first prefill creates its tensors, unless it is compiled and needs them before."""
        config = self._model.config.get_text_config()
        cache = StaticCache(config=self._model.config, max_cache_len=tokens)
        if self._is_compiled:
            heads = config.num_key_value_heads // self._ranks
            cache.early_initialization(batch, heads, config.head_dim, self._model.dtype, self._device)
        return cache

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor, positions: torch.Tensor, cache: Any, visible: Any = None) -> torch.Tensor:
        """Return logits [B, 1, V] after more tokens [B, T] at positions [B, T], in the model's dtype on its device."""
        logits: torch.Tensor = self._call(
            input_ids=tokens,
            attention_mask=visible,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits

    def _logits(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        tokens, positions, visible = (tensor.to(self._device) for tensor in (tokens, positions, self._visible))
        return self.step(tokens, positions, self._cache, visible).float().cpu()
