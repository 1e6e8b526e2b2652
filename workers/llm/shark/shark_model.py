"""Preparing a Hugging Face model for sharktank and Brevitas, and sharktank's names for its tensors."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.llm.command_line import BadInput
from workers.llm.models.model_source import ROPE_PARAMETERS, ROPE_THETA, TOKENIZER_FILES, LocalModel, leave_out_code
from workers.llm.shark.shark_program import most_tokens

FREQ_BASE, ARCHITECTURE = "rope.freq_base", "general.architecture"
ROPE_SCALING = "rope_scaling"  #: where transformers 4 keeps what 5 keeps in rope_parameters
KEPT = ("safetensors", "safetensors.index.json")

#: parts of a tensor's name in a block: sharktank's (GGUF's), and Hugging Face's
BLOCK_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(.+)")


def name_of(shark_name: str) -> str:
    """Return Hugging Face's name of a tensor: `blk.0.attn_q.weight` is `model.layers.0.self_attn.q_proj.weight`.

    Raises KeyError for a tensor that Hugging Face's models do not have.
    """
    match = IN_BLOCK.fullmatch(shark_name)
    if match:
        return f"model.layers.{match[1]}.{BLOCK_NAMES[match[2]]}.{match[3]}"
    module, _, leaf = shark_name.partition(".")
    return f"{OUTSIDE[module]}.{leaf}"


def dtype_of(model: LocalModel) -> str:
    """Return the name of the dtype that the model's weights are stored in, from a config of transformers 5 or 4."""
    dtype = getattr(model.config, "dtype", None) or getattr(model.config, "torch_dtype", None) or "float32"
    return str(dtype).rpartition(".")[2]


def rope_theta(model: LocalModel) -> float:
    """Return the model's rope base, wherever its config has it."""
    parameters = getattr(model.config, ROPE_PARAMETERS, None) or {}
    return float(parameters.get(ROPE_THETA, getattr(model.config, ROPE_THETA, 10000.0)))


def rope_scaling(model: LocalModel) -> dict[str, Any]:
    """Return the parameters that scale the model's rotary frequencies; empty where they are unscaled."""
    parameters = getattr(model.config, ROPE_PARAMETERS, None) or getattr(model.config, ROPE_SCALING, None) or {}
    scaling = {key: value for key, value in parameters.items() if key not in (ROPE_THETA, "type")}
    kind = scaling.get("rope_type", parameters.get("type", "default"))
    return {} if kind == "default" else {**scaling, "rope_type": kind}


def rope_warnings(model: LocalModel) -> list[str]:
    """Return warnings of what sharktank leaves out of the model's rotary embedding, and the consequence.

    Release 3.8 scales the frequencies of the architecture llama3 alone, which its importers assign to no model and
    which it cannot export (KeyError in AttentionFFNBlock).
    """
    scaling = rope_scaling(model)
    if not scaling:
        return []
    values = ", ".join(f"{key} {value:g}" for key, value in sorted(scaling.items()) if isinstance(value, int | float))
    kind = f"{scaling['rope_type']}: {values}" if values else scaling["rope_type"]
    return [
        f"sharktank 3.8 leaves out the model's rope scaling ({kind}): the program turns queries and keys by unscaled "
        "frequencies, so its logits differ from the model's, the more the later the position"
    ]


def problems(model: LocalModel, pp: int, cache_length: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield the modules that sharktank 3.8 can't export in a pipeline of `pp` stages, with the reason.

    Its importer supports the tensors of a llama without biases and with an output of its own.
    """
    config = model.config
    if model.folder is None:
        yield "config.json", "sharktank imports models with weights alone, and this is a shape"
    if config.model_type != "llama":
        yield "config.json", f"sharktank imports llama alone, and this is {config.model_type}"
        return
    for key in ("attention_bias", "mlp_bias"):
        if getattr(config, key, False):
            yield "config.json", f"sharktank imports no biases, and the model has some ({key})"
    if config.tie_word_embeddings:
        yield "lm_head", "sharktank imports no output that is tied to the embeddings (tie_word_embeddings)"
    if pp > config.num_hidden_layers:
        yield (
            "model.layers",
            f"a pipeline of {pp} stages needs as many layers, and there are {config.num_hidden_layers}",
        )
    most = most_tokens(config.max_position_embeddings)
    if cache_length is not None and cache_length > most:
        yield (
            "model.rotary_emb",
            f"prompt and new tokens are {cache_length}, and sharktank's programs hold {most} a row",
        )


def with_rope(properties: Mapping[str, Any], model: LocalModel) -> dict[str, Any]:
    """Return a dataset's properties with the model's own rope base."""
    return {**properties, f"{properties.get(ARCHITECTURE, 'llama')}.{FREQ_BASE}": rope_theta(model)}


def write_model(model: LocalModel, folder: Path) -> list[Path]:
    """Write a llama in the layout of transformers 4, which sharktank reads; return its safetensors files.

    The weights are symbolic links. Raises BadInput for an architecture that sharktank's tools do not support.
    """
    if model.folder is None or model.config.model_type != "llama":
        raise BadInput(f"sharktank imports llama alone, with weights, and this is {model.config.model_type}")
    folder.mkdir(parents=True)
    config = {**model.config.to_dict(), ROPE_THETA: rope_theta(model), "architectures": ["LlamaForCausalLM"]}
    config.pop(ROPE_PARAMETERS, None)
    config[ROPE_SCALING] = rope_scaling(model) or None
    config.pop("dtype", None)
    config["torch_dtype"] = dtype_of(model)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    for file in model.folder.iterdir():
        if file.name in TOKENIZER_FILES or file.name.endswith(KEPT):
            (folder / file.name).symlink_to(file.resolve())
    leave_out_code(folder / "tokenizer_config.json")
    return sorted(folder.glob("*.safetensors"))


def repair(source: Path, target: Path, model: LocalModel) -> None:
    """Copy a dataset, with the model's own rope base in its properties."""
    from sharktank.types import Dataset

    dataset: Any = Dataset.load(source)
    dataset.properties = with_rope(dataset.properties, model)
    dataset.save(target, io_report_callback=None)
