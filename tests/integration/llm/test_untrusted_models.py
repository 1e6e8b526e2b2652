"""A model's folder is data: no code in it runs, whoever reads it, and its numbers are checked before they are used."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from jobs.models import SHIPPED
from workers.llm.command_line import BadInput
from workers.llm.models.json_files import parse_json_object
from workers.llm.models.model_source import leave_out_code, load_model, load_tokenizer, shard_names
from workers.llm.numerics.reference import load_reference
from workers.llm.programs.check import CheckRequest, check

EVIL = "open('pwned', 'w').close()\n\nclass Evil:\n    from_pretrained = __init__ = lambda *args, **kwargs: None\n"
CODE = {
    "AutoConfig": "evil.Evil",
    "AutoModelForCausalLM": "evil.Evil",
    "AutoTokenizer": ["evil.Evil", "evil.Evil"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped model, with code beside it that would leave a file."""
    monkeypatch.chdir(tmp_path)
    copy = Path(shutil.copytree(SHIPPED / "tiny-llama", tmp_path / "model"))
    (copy / "evil.py").write_text(EVIL)
    return copy


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def assert_nothing_ran(folder: Path) -> None:
    assert not list(folder.parent.rglob("pwned"))


def test_a_known_familys_code_is_left_out_by_checks_and_stages(folder: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        change(folder / name, auto_map=CODE)
    model = load_model(str(folder), None, {})
    assert not hasattr(model.config, "auto_map")
    assert check(model, CheckRequest())["problems"] == []
    assert len(load_tokenizer(model)) > 0
    load_reference(model)
    assert_nothing_ran(folder)


def test_a_tokenizer_that_is_code_is_refused_in_plain_words(folder: Path) -> None:
    change(folder / "tokenizer_config.json", auto_map=CODE, tokenizer_class="Evil")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match="is code of its own"):
        load_tokenizer(load_model(str(folder), None, {}))
    assert_nothing_ran(folder)


def test_a_family_that_is_code_is_unknown(folder: Path) -> None:
    change(folder / "config.json", auto_map=CODE, model_type="evil")
    with pytest.raises(BadInput, match="does not know the model type"):
        load_model(str(folder), None, {})
    assert_nothing_ran(folder)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(BadInput, match=r"cannot be loaded|has neither"):
        load_reference(load_model(str(folder), None, {}))
    assert_nothing_ran(folder)


def test_a_copy_for_other_programs_names_no_code(folder: Path) -> None:
    change(folder / "tokenizer_config.json", auto_map=CODE)
    (folder.parent / "link.json").symlink_to(folder / "tokenizer_config.json")
    leave_out_code(folder.parent / "link.json")
    assert "auto_map" not in (folder.parent / "link.json").read_text()
    assert "auto_map" in (folder / "tokenizer_config.json").read_text()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"num_hidden_layers": 10_000}, "num_hidden_layers should be between 1 and 256, not 10000"),
        ({"num_labels": 2**50}, "num_labels should be between"),
        ({"num_labels": 2**63}, "only finite ones"),
        ({"head_dim": 0}, "head_dim should be between 1"),
        ({"vocab_size": -1}, "vocab_size should be between 1"),
        ({"hidden_size": "x"}, "hidden_size should be a number, not 'x'"),
        ({"pad_token_id": 512}, "pad_token_id is 512, but the model embeds only 512 tokens"),
        ({"quantization_config": []}, "quantization_config should be an object"),
        ({"vocab_size": [512]}, "vocab_size should be a number"),
    ],
)
def test_numbers_are_checked_before_a_module_is_built(folder: Path, values: dict[str, Any], reason: str) -> None:
    change(folder / "config.json", **values)
    with pytest.raises(BadInput, match=reason):
        check(load_model(str(folder), None, {}), CheckRequest())


@pytest.mark.parametrize("auto_map", [None, 0, True, [], {}, "x"])
def test_any_auto_map_is_left_out(folder: Path, auto_map: Any) -> None:
    change(folder / "config.json", auto_map=auto_map)
    assert not hasattr(load_model(str(folder), None, {}).config, "auto_map")


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"a":' * 40 + b"1" + b"}" * 40, b"[]", b'{"a": NaN}', b'{"a": 1e999}', b"\xff", b""]
)
def test_json_has_limits(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json_object(text)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "a\0b.safetensors", "", 7, "x" * 300 + ".safetensors"]
)
def test_an_index_names_files_beside_it(folder: Path, name: Any) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(BadInput, match="index"):
        shard_names(index)
