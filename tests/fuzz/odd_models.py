"""Odd models: configs of many families with sizes, windows, biases, ties, rotary embeddings and keys that nobody chose.

Each goes through submit's check, export and the compiler, and its program through a loader of its own, which shares no
code with haloctl: it must compute what transformers computes, or be refused with a reason before anything is compiled.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.integration.models import make_tokenizer

#: families that programs are split for
SPLIT = ("llama", "mistral", "qwen2", "qwen3", "granite", "gemma2", "gpt_neox", "mixtral", "olmo2", "phi3")
FAMILIES = (
    *SPLIT,
    *("arcee", "cohere", "cohere2", "exaone4", "gemma", "gemma3_text", "glm", "glm4", "helium", "ministral", "olmo"),
    *("olmoe", "phi", "qwen2_moe", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2"),
)
HEADS_OF_THE_WIDTH = ("gpt_neox", "olmo", "olmoe", "phi", "stablelm", "starcoder2")  #: they have no head_dim
KINDS = ("full_attention", "sliding_attention")
#: the words of keys that some families read and others ignore
KEYS: dict[str, tuple[Any, ...]] = {
    "sliding_window": (None, 1, 2, 3, 5, 9),
    "use_sliding_window": (True, False),
    "max_window_layers": (0, 1, 2, 3),
    "attention_bias": (True, False),
    "mlp_bias": (True, False),
    "use_bias": (True, False),
    "use_qkv_bias": (True, False),
    "use_qk_norm": (True, False),
    "use_parallel_residual": (True, False),
    "hidden_act": ("silu", "gelu", "relu", "gelu_pytorch_tanh"),
    "hidden_activation": ("silu", "gelu_pytorch_tanh"),
    "rms_norm_eps": (1e-6, 1e-5, 1e-2),
    "attn_logit_softcapping": (None, 2.0),
    "final_logit_softcapping": (None, 3.0),
    "attention_multiplier": (0.25, 0.5, 1.0),
    "residual_multiplier": (0.25, 0.5, 2.0),
    "embedding_multiplier": (0.5, 2.0),
    "logits_scaling": (0.5, 2.0),
    "logit_scale": (0.25, 2.0),
    "clip_qkv": (None, 0.5),
    "norm_topk_prob": (True, False),
    "decoder_sparse_step": (1, 2),
    "sliding_window_pattern": (1, 2, 3),
    "shared_expert_intermediate_size": (3, 16, 29),
    "return_dict": (True, False),
    "use_cache": (True, False),
    "output_attentions": (True, False),
    "pretraining_tp": (1, 2),
    "attention_dropout": (0.1,),
    "torch_dtype": ("float16", "bfloat16"),
    "chunk_size_feed_forward": (0, 4),
}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
STEPS = 3  #: decodes after each prefill


@dataclass(frozen=True)
class OddModel:
    """A config, and how it is exported and run."""

    config: dict[str, Any]
    has_other_head: bool  #: the file holds other weights for a head that the config may tie
    tp: int
    attention: str
    bucket: int
    lengths: tuple[int, ...]  #: of the prompts, one for each row
    block_tokens: int | None
    spare: int  #: tokens that the cache holds beside the longest row's

    @property
    def cache_length(self) -> int:
        """Tokens that a row of the cache holds."""
        return self.bucket + STEPS + self.spare

    @property
    def flags(self) -> list[str]:
        """The flags of export beside the model."""
        sizes = [
            f"--batch={len(self.lengths)}",
            f"--prompt-tokens={self.bucket}",
            f"--cache-length={self.cache_length}",
        ]
        blocks = [f"--block-tokens={self.block_tokens}"] if self.block_tokens else []
        return ["--precision=f32", f"--tp={self.tp}", f"--attention={self.attention}", *sizes, *blocks]


def odd_model(number: int) -> OddModel:
    """Return the model of a number; its sizes mostly fit together."""
    chance = random.Random(number)
    family = chance.choice(FAMILIES)
    tp = chance.choice((1, 1, 2)) if family in SPLIT else 1
    bucket = chance.randint(1, 13)
    model = OddModel(
        config={},
        has_other_head=chance.random() < 0.25,
        tp=tp,
        attention=chance.choice(("sdpa", "eager")),
        bucket=bucket,
        lengths=tuple(chance.randint(1, bucket) for _ in range(chance.randint(1, 3))),
        block_tokens=chance.choice((None, None, 16)),
        spare=chance.randint(0, 12),
    )
    sizes = _sizes(chance, family, tp)
    model.config.update(sizes | _more_keys(chance, sizes["num_hidden_layers"]) | _rope(chance, model.cache_length))
    return model


def _sizes(chance: random.Random, family: str, tp: int) -> dict[str, Any]:
    kv_heads = tp * chance.randint(1, 2)
    heads = kv_heads * chance.randint(1, 3)
    head_dim = chance.choice((4, 6, 8, 10, 16))
    is_square = family in HEADS_OF_THE_WIDTH or chance.random() < 0.5
    return {
        "model_type": family,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": heads * head_dim if is_square else 2 * chance.randint(8, 40),
        "intermediate_size": tp * chance.randint(3, 50),
        "moe_intermediate_size": tp * chance.randint(3, 30),
        "num_local_experts": 4,
        "num_experts": 4,
        "num_experts_per_tok": chance.randint(1, 3),
        "num_hidden_layers": chance.randint(1, 4),
        "vocab_size": tp * chance.randint(60, 130),
        "max_position_embeddings": chance.choice((32, 64, 4096)),
        "tie_word_embeddings": chance.random() < 0.5,
        "initializer_range": 0.2,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **({"query_pre_attn_scalar": head_dim} if chance.random() < 0.5 else {}),
    }


def _more_keys(chance: random.Random, layers: int) -> dict[str, Any]:
    """Return keys that some families read and others ignore."""
    values: dict[str, Any] = {key: chance.choice(words) for key, words in KEYS.items()}
    values["layer_types"] = [chance.choice(KINDS) for _ in range(layers)]
    values["no_rope_layers"] = [chance.randint(0, 1) for _ in range(layers)]
    return {key: values[key] for key in chance.sample(sorted(values), chance.randint(0, 8))}


def _rope(chance: random.Random, cache_length: int) -> dict[str, Any]:
    """Return nothing, or a rotary embedding in transformers 5's form or the older one."""
    original = chance.randint(max(cache_length - 2, 14), cache_length + 16)
    scaling = {"original_max_position_embeddings": original, "factor": chance.choice((2.0, 4.0))}
    ropes: dict[str, dict[str, Any]] = {
        "default": {},
        "linear": scaling,
        "dynamic": scaling,
        "yarn": scaling,
        "llama3": scaling | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "longrope": scaling | {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [4.0, 6.0, 8.0, 12.0]},
    }
    kind = chance.choice(("", "", "default", *ropes))
    if not kind:
        return {}
    partial = {"partial_rotary_factor": 0.5} if chance.random() < 0.25 else {}
    rope = {"rope_type": kind, "rope_theta": chance.choice((100.0, 10000.0)), **ropes[kind], **partial}
    top = {"head_dim": 8, "original_max_position_embeddings": original} if kind == "longrope" else {}
    return {chance.choice(("rope_parameters", "rope_parameters", "rope_scaling")): rope, **top}


def read_config(folder: Path) -> Any:
    """Return the config as transformers reads it, for calls whose results have names."""
    config = AutoConfig.from_pretrained(folder)
    config.return_dict = True
    return config


def write_model(folder: Path, model: OddModel, seed: int = 0) -> bool:
    """Write the config as it is, with random weights of the model that transformers reads in it; False for none."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(model.config))
    torch.manual_seed(seed)
    try:
        network = AutoModelForCausalLM.from_config(read_config(folder), dtype=torch.float32, **EAGER).eval()
        network(input_ids=torch.ones((1, model.cache_length), dtype=torch.int64), use_cache=False)
    except Exception:  # transformers can't build or run it, so nobody could have trained it
        return False
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_(0.5, 0.2)
    network.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(model.config))
    make_tokenizer(folder)
    if model.has_other_head:
        _store_other_head(folder / "model.safetensors")
    return True


def _store_other_head(file: Path) -> None:
    tensors = load_file(file)
    for name in list(tensors):
        if name.endswith(("embed_tokens.weight", "embed_in.weight")):
            head = "embed_out.weight" if "embed_in" in name else "lm_head.weight"
            tensors[head] = tensors[name].flip(0).contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
