"""A model of transformers on its ranks: split by its own tensor-parallel plan, with a static KV cache.

What transformers 5.23 and torch 2.13 leave to be done: the plan needs accelerate to be installed; subgroups of a device
mesh wait 30 minutes for a lost peer (`workers.llm.rank_process` limits them); the mesh is laid over the accelerator
that torch was built for, also where an attempt's devices are the host's cores. Every collective of llama's plan runs on
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

from workers.llm.compiled import compiled
from workers.llm.hollow import DTYPES
from workers.llm.model_source import load_model
from workers.llm.program import BadInput, parse_overrides
from workers.llm.rank_process import Rank
from workers.llm.reference import load_weights, pad_left
from workers.llm.split_problems import rank_problems


def entry_points(args: Namespace) -> dict[str, Any]:
    """What the ranks can be asked, in the words of an exported program's config.json."""
    return {
        "batch_sizes": sorted(args.batch),
        "prompt_tokens": sorted(args.prompt_tokens),
        "entry_points": [
            {"name": f"prefill_bs{batch}_t{tokens}", "kind": "prefill", "batch": batch, "prompt_tokens": tokens}
            for batch, tokens in product(sorted(args.batch), sorted(args.prompt_tokens))
        ],
    }


def open_session(rank: Rank, args: Namespace) -> "TorchSession":
    """Load this rank's shard of the model. Raises BadInput when that can't be done."""
    started = time.monotonic()
    disable_progress_bar()
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    for problem in rank_problems(model.config.get_text_config(), True, args.tp):
        raise BadInput(problem.reason)
    how: dict[str, Any] = {"dtype": DTYPES[args.precision], "attn_implementation": args.attention}
    if args.tp > 1:
        _lay_meshes_over(rank.torch_device)
        how["distributed_config"] = DistributedConfig(tp_size=args.tp)
    loaded = load_weights(model, **how)
    placed = loaded if args.tp > 1 else loaded.to(rank.torch_device)
    return TorchSession(placed, rank.torch_device, args, time.monotonic() - started)


def _lay_meshes_over(device: torch.device) -> None:
    """Have transformers take this kind of device: it asks what torch was built for, not what it may use."""
    if torch._C._get_accelerator().type != device.type:
        torch._C._get_accelerator = lambda check=False: torch.device(device.type)


class TorchSession:
    """The model on one rank; all ranks make the same calls. A prefill starts a batch anew.

    Rows of different lengths end at the same slot of the cache: padding is on the left, as transformers has it.
    """

    def __init__(self, model: Any, device: torch.device, args: Namespace, load_s: float) -> None:
        self.load_s = load_s
        self.program = entry_points(args)
        self._model, self._device = model.eval(), device
        self._is_compiled = args.compile is not None
        self._call = compiled(self._model, args.compile, args.inductor) if self._is_compiled else self._model
        self._cache_tokens = max(args.prompt_tokens) + args.new_tokens
        self._ranks = args.tp
        self._cache: Any = None
        self._visible = torch.zeros(0)
        self._filled = 0  #: slots of the cache

    def prefill(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [B, 1, V], after the last of each row's `lengths` [B] tokens [B, T]."""
        batch, prompt = tokens.shape
        tokens, visible, positions = pad_left(tokens, lengths)
        # as long as the cache: a mask that grew would be another shape to compile for in each step
        self._visible = torch.zeros(batch, self._cache_tokens, dtype=visible.dtype)
        self._visible[:, :prompt] = visible
        self._filled = prompt
        self._cache = self.new_cache(batch, self._cache_tokens)
        return self._logits(tokens, positions)

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [B, 1, V], after one more token [B, 1] at `positions` [B], which count from 0."""
        self._visible[:, self._filled] = 1
        self._filled += 1
        return self._logits(tokens, positions[:, None])

    @torch.inference_mode()
    def new_cache(self, batch: int, tokens: int) -> Any:
        """An empty cache; its tensors are made by the first prefill, but before it where that is compiled."""
        config = self._model.config.get_text_config()
        cache = StaticCache(config=self._model.config, max_cache_len=tokens)
        if self._is_compiled:
            heads = config.num_key_value_heads // self._ranks
            cache.early_initialization(batch, heads, config.head_dim, self._model.dtype, self._device)
        return cache

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor, positions: torch.Tensor, cache: Any, visible: Any = None) -> torch.Tensor:
        """Logits [B, 1, V] after more tokens [B, T] at positions [B, T], as they are and where they are."""
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
