"""A Hugging Face model as sharktank and Brevitas read it, and the names that sharktank gives to its tensors."""

import json
import re
from pathlib import Path
from typing import Any

from workers.llm.model_source import ROPE_PARAMETERS, ROPE_THETA, TOKENIZER_FILES, Model
from workers.llm.program import BadInput

FREQ_BASE = "rope.freq_base"
KEPT = ("safetensors", "safetensors.index.json")

#: Of a tensor, sharktank's (GGUF's) words for Hugging Face's.
WORDS = {
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
    """A tensor's name in Hugging Face's words: `blk.0.attn_q.weight` is `model.layers.0.self_attn.q_proj.weight`."""
    found = IN_BLOCK.fullmatch(shark_name)
    if found:
        return f"model.layers.{found[1]}.{WORDS[found[2]]}.{found[3]}"
    word, _, rest = shark_name.partition(".")
    return f"{OUTSIDE[word]}.{rest}"


def dtype_of(model: Model) -> str:
    """The name of the type that the model's weights are stored in, as transformers 5 or 4 keeps it."""
    found = getattr(model.config, "dtype", None) or getattr(model.config, "torch_dtype", None) or "float32"
    return str(found).rpartition(".")[2]


def rope_theta(model: Model) -> float:
    """The model's rope base, wherever its config keeps it."""
    parameters = getattr(model.config, ROPE_PARAMETERS, None) or {}
    return float(parameters.get(ROPE_THETA, getattr(model.config, ROPE_THETA, 10000.0)))


def rope_warnings(model: Model) -> list[str]:
    """What of the model's rotary embedding sharktank leaves out."""
    parameters = getattr(model.config, ROPE_PARAMETERS, None) or getattr(model.config, "rope_scaling", None) or {}
    kind = parameters.get("rope_type", "default")
    return [] if kind == "default" else [f"sharktank leaves out the model's rope scaling ({kind})"]


def has_biases(model: Model) -> bool:
    """Whether the model's linear modules have biases."""
    return bool(getattr(model.config, "attention_bias", False) and getattr(model.config, "mlp_bias", False))


def write_model(model: Model, folder: Path) -> list[Path]:
    """Lay a llama out as transformers 4 does, with the rope base where sharktank looks; returns its safetensors.

    The weights are links. Raises BadInput for another architecture than sharktank's own tools know.
    """
    if model.folder is None or model.config.model_type != "llama":
        raise BadInput(f"sharktank imports llama alone, with weights, and this is {model.config.model_type}")
    folder.mkdir(parents=True)
    config = {**model.config.to_dict(), ROPE_THETA: rope_theta(model), "architectures": ["LlamaForCausalLM"]}
    config.pop(ROPE_PARAMETERS, None)
    config.pop("dtype", None)
    config["torch_dtype"] = dtype_of(model)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    for file in model.folder.iterdir():
        if file.name in TOKENIZER_FILES or file.name.endswith(KEPT):
            (folder / file.name).symlink_to(file.resolve())
    return sorted(folder.glob("*.safetensors"))


def repair(source: Path, target: Path, model: Model) -> None:
    """Copy a dataset with the model's own rope base in it, whatever it said."""
    from sharktank.types import Dataset

    dataset: Any = Dataset.load(source)
    properties = dict(dataset.properties)
    name = properties.get("general.architecture", "llama")
    if "hparams" in properties:
        properties["hparams"] = {**properties["hparams"], f"{name}.{FREQ_BASE}": rope_theta(model)}
    else:
        properties[f"{name}.{FREQ_BASE}"] = rope_theta(model)
    dataset.properties = properties
    dataset.save(target, io_report_callback=None)
