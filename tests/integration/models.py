"""Tiny random models in Hugging Face layout, one for each family, with a tokenizer."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 256
TEXT = ["in the beginning was the word", "and the word was made of tokens", "and there were few of them"]

#: config values of a family beside the common ones
FAMILY_VALUES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
        "logits_scaling": 2.0,
    },
    "gemma2": {"sliding_window": 5, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "gpt_neox": {"attention_bias": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5},
    "olmo2": {"tie_word_embeddings": False},
    "phi3": {"sliding_window": 5},
}
COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 128,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_checkpoint(folder: Path, family: str, shard_bytes: str = "5GB", seed: int = 0, **config: Any) -> Path:
    """Write a random model of `family` into `folder`; norms and biases are random too, so that a lost one shows."""
    torch.manual_seed(seed)
    values = {**COMMON, **FAMILY_VALUES.get(family, {}), **config}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(0.5, 0.2)
    model.save_pretrained(folder, max_shard_size=shard_bytes)
    make_tokenizer(folder)
    return folder


def make_tokenizer(folder: Path, more_tokens: int = 0) -> None:
    """Train a small byte-level tokenizer and save it beside the model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=special))
    tokenizer.add_tokens([f"<{number}>" for number in range(more_tokens)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
