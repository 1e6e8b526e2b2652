"""`python llama_cpp.py MODEL FOLDER KIND...`: a llama in Hugging Face layout as llama.cpp quantizes it, to GGUF.

Runs under gguf, safetensors and cyllama: its wheel has llama.cpp's own quantizer, which no other package has that only
needs to be installed. KIND is one of llama-quantize: Q8_0, Q4_K_M.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from cyllama.llama.llama_cpp import LlamaModelQuantizeParams, model_quantize
from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
from gguf.constants import LlamaFileType
from safetensors.numpy import load_file

HEADS = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}


def main() -> None:
    """Write FOLDER/KIND.gguf for each kind."""
    model, folder, kinds = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    write(model, folder / "f32.gguf")
    for kind in kinds:
        how = LlamaModelQuantizeParams()
        how.ftype = LlamaFileType[f"MOSTLY_{kind}"].value
        model_quantize(str(folder / "f32.gguf"), str(folder / f"{kind}.gguf"), how)


def write(model: Path, file: Path) -> None:
    """The model in f32; without its tokenizer, which quantizing does not need."""
    config = json.loads((model / "config.json").read_text())
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(model / "model.safetensors").items():
        key = next((key for part, key in HEADS.items() if f".{part}." in name), None)
        rows = pairs_side_by_side(tensor, config[key]) if key else tensor
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(rows, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pairs_side_by_side(rows: Any, heads: int) -> Any:
    """As llama.cpp's convert_hf_to_gguf.py permutes the rows that rotate together."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


if __name__ == "__main__":
    main()
