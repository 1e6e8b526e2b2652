"""The size of vLLM's KV cache."""

from argparse import Namespace

import pytest
from transformers import GPTNeoXConfig, LlamaConfig

from workers.llm.programs.vllm_benchmark import cache_bytes

#: of llama 3.1 8B, bytes a token in f16: 2 * 32 layers * 8 heads * 128 values * 2
TOKEN_BYTES = 131_072


@pytest.mark.parametrize(
    ("workload", "tokens"),
    [
        ({"batch": 1, "prompt_tokens": 64, "new_tokens": 16}, 2 * (1 + 1) * 256),
        ({"batch": 4, "prompt_tokens": 2048, "new_tokens": 32}, 2 * (4 * 9 + 1) * 256),
    ],
)
def test_a_cache_has_room_for_twice_the_workload(workload: dict[str, int], tokens: int) -> None:
    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128
    )
    arguments = Namespace(**workload, precision="f16", tp=1)
    assert cache_bytes(config, arguments) == tokens * TOKEN_BYTES
    assert cache_bytes(config, Namespace(**{**vars(arguments), "tp": 8})) == tokens * TOKEN_BYTES // 8
    assert cache_bytes(config, Namespace(**{**vars(arguments), "precision": "f32"})) == tokens * TOKEN_BYTES * 2


def test_heads_that_share_no_keys_have_their_own() -> None:
    config = GPTNeoXConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
    arguments = Namespace(batch=1, prompt_tokens=200, new_tokens=8, precision="f32", tp=1)
    assert cache_bytes(config, arguments) == 2 * 2 * 256 * 2 * 2 * 64 * 4
