"""Finding a model by name: its config and its files. Nothing here reads a weight."""

import difflib
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer
from transformers.utils import cached_file

from jobs.models import ModelKind, ModelSource, resolve, shape_file
from workers.llm.command_line import BadInput
from workers.llm.models.config_limits import config_problem, without_code
from workers.llm.models.json_files import expect_small_file, read_json_object

QUANTIZATION = "quantization_config"
SHARD = re.compile(r"[\w-][\w.-]{0,199}\.safetensors", re.ASCII)
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)
#: where a config has the rope base: at the top in old files, inside `rope_parameters` in transformers 5
ROPE_THETA, ROPE_PARAMETERS = "rope_theta", "rope_parameters"


@dataclass(frozen=True)
class LocalModel:
    """A model whose config has been read and whose files are on this machine."""

    source: ModelSource
    config: Any  #: transformers' config, overrides applied
    overrides: dict[str, Any]
    folder: Path | None  #: config, tokenizer and weights; None for a shape

    @property
    def has_weights(self) -> bool:
        """False for a shape."""
        return self.folder is not None

    def describe(self) -> dict[str, Any]:
        """Return the entries that identify the model in a program's config.json."""
        return {
            "name": self.source.name,
            "type": self.config.model_type,
            "source": self.source.text,
            "overrides": self.overrides,
        }


def load_model(text: str, revision: str | None, overrides: dict[str, Any], with_weights: bool = True) -> LocalModel:
    """Find the model that `text` names, fetch a hub model's files, and read the config."""
    try:
        source = resolve(text)
    except ValueError as problem:
        raise BadInput(str(problem)) from None
    if source.kind is ModelKind.PROGRAM:
        raise BadInput(f"{text} is a program: give a model, from which programs are made")
    if source.kind is ModelKind.SHAPE:
        return LocalModel(source, read_config(shape_file(source), overrides), overrides, None)
    folder = source.folder or fetch(source.text, revision, with_weights)
    return LocalModel(source, read_config(folder / "config.json", overrides), overrides, folder)


def read_config(path: Path, overrides: dict[str, Any]) -> Any:
    """Read a config.json and apply `overrides`. Raises BadInput for keys that the config class does not know."""
    values = without_code(read_json_object(path))
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise BadInput(f"{path} has no model_type: a config.json in Hugging Face layout is needed")
    try:
        defaults = AutoConfig.for_model(model_type).to_dict()
    except (ValueError, KeyError):
        raise BadInput(f"{path}: transformers does not know the model type {model_type[:100]!r}") from None
    except Exception:  # some families refuse their own defaults
        defaults = {}
    _check_keys(overrides, {*defaults, *values, ROPE_THETA})
    return _make_config(path, _apply_overrides(values, overrides))


def _check_keys(overrides: dict[str, Any], known: set[str]) -> None:
    for key in overrides:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f": did you mean {close[0]}?" if close else ""
            raise BadInput(f"override {key}: this model's config has no such key{hint}")


def _apply_overrides(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    merged = {**values, **overrides}
    if ROPE_THETA in overrides and isinstance(merged.get(ROPE_PARAMETERS), dict):
        merged[ROPE_PARAMETERS] = {**merged[ROPE_PARAMETERS], ROPE_THETA: overrides[ROPE_THETA]}
    if "num_hidden_layers" in overrides and "layer_types" not in overrides and merged.get("layer_types"):
        merged["layer_types"] = merged["layer_types"][: overrides["num_hidden_layers"]]
    return merged


def _make_config(path: Path, values: dict[str, Any]) -> Any:
    """Let transformers read the values from a file: that is where it decides what a config means.

    `AutoConfig.for_model` does not: transformers 5.23 reads a mistral with `layer_types` as a ministral.
    """
    if problem := config_problem(values):
        raise BadInput(f"{path}: {problem}")
    if not isinstance(values.get(QUANTIZATION, {}), dict | None):
        raise BadInput(f"{path}: {QUANTIZATION} should be an object")
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(values))
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as problem:  # transformers' validation raises many types, some of huggingface_hub's own
        raise BadInput(f"{path}: transformers refuses this config: {problem}") from None
    config.name_or_path = ""
    return config


def fetch(hub_id: str, revision: str | None, with_weights: bool) -> Path:
    """Download a hub model's files into transformers' cache; return the snapshot's folder."""
    config = _cached(hub_id, "config.json", revision, required=True)
    assert config is not None
    for name in TOKENIZER_FILES:
        _cached(hub_id, name, revision)
    if with_weights and _cached(hub_id, SINGLE_FILE, revision) is None:
        index = _cached(hub_id, INDEX_FILE, revision)
        for name in shard_names(index) if index else []:
            _cached(hub_id, name, revision, required=True)
    return config.parent


def _cached(hub_id: str, name: str, revision: str | None, required: bool = False) -> Path | None:
    try:
        path = cached_file(hub_id, name, revision=revision, _raise_exceptions_for_missing_entries=required)
    except (OSError, ValueError) as problem:
        at = f" at revision {revision}" if revision else ""
        raise BadInput(f"{name} of the hub model {hub_id}{at} cannot be fetched: {problem}") from None
    return Path(path) if path else None


def shard_names(index: Path) -> list[str]:
    """Return the files that an index names, each of which is beside it. Raises BadInput."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise BadInput(f"{index} is not a valid index: it has no weight_map of file names; fetch the file again")
    for name in weight_map.values():
        if not SHARD.fullmatch(name):
            raise BadInput(f"{index} names {name[:100]!r}, which is not a safetensors file beside it")
    return sorted(set(weight_map.values()))


def leave_out_code(file: Path) -> None:
    """Replace a copy of a config, or a link to one, by a copy without what names code, for programs that read it."""
    if file.is_file():
        values = without_code(read_json_object(file))
        file.unlink()
        file.write_text(json.dumps(values, indent=1))


def load_tokenizer(model: LocalModel) -> Any:
    """Load the model's tokenizer. Raises BadInput when it is missing, unreadable or larger than the vocabulary."""
    if model.folder is None:
        raise BadInput(f"{model.source.text} is a shape: it has no tokenizer")
    for name in TOKENIZER_FILES:
        if (model.folder / name).exists():
            expect_small_file(model.folder / name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.folder, trust_remote_code=False)
    except Exception as problem:  # tokenizers raises plain Exception on a broken file
        if "trust_remote_code" in str(problem):
            raise BadInput(f"the tokenizer in {model.folder} is code of its own (auto_map), which is not run") from None
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise BadInput(f"the tokenizer in {model.folder} cannot be loaded: {first}") from None
    if len(tokenizer) > model.config.vocab_size:
        raise BadInput(
            f"the tokenizer in {model.folder} has {len(tokenizer)} tokens, but the model embeds only "
            f"{model.config.vocab_size} (vocab_size): they do not belong together"
        )
    return tokenizer
