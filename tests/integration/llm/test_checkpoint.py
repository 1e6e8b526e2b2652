"""Weights from safetensors files to each rank's archive, and corrupted files."""

import json
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import iree.runtime
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.submission.model_check import file_digests, model_digest
from tests.integration.models import make_checkpoint, make_tokenizer
from workers.inputs.content_digests import ContentDigests
from workers.llm.command_line import BadInput
from workers.llm.models.model_source import load_model
from workers.llm.models.quantized_layout import KEY, QuantizationScheme, QuantizedLayout, quantization_config
from workers.llm.programs.check import CheckRequest, Int4Grouping, check, config_digest, files_of
from workers.llm.weights.checkpoint import match, read_checkpoint
from workers.llm.weights.irpa import ArchiveWriter
from workers.llm.weights.meta_model import build_meta_model, parameter_shapes, shard
from workers.llm.weights.parameters import lay_out, write_parameters
from workers.llm.weights.ties import tied_names

SMALL_CHUNK = 1000  #: bytes; less than any matrix of the tiny models


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model", "qwen2", num_key_value_heads=2)


def archive_entries(file: Path) -> dict[str, bytes]:
    """The entries of an archive, as IREE's own reader returns them."""
    index = iree.runtime.ParameterIndex()
    index.load(str(file))
    return {name: bytes(entry.file_view) for name, entry in index.items()}


def write(folder: Path, out: Path, tp: int, dtype: torch.dtype) -> list[dict[str, torch.Tensor]]:
    """Each rank's parameters as written and read back, flat."""
    loaded = load_model(str(folder), None, {})
    meta_model = build_meta_model(loaded.config, dtype, "sdpa", FakeTensorMode())
    tensors = match(read_checkpoint(folder), parameter_shapes(meta_model), tied_names(meta_model), folder)
    out.mkdir()
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    layout = lay_out(shapes, shard(meta_model, tp), dict.fromkeys(shapes, dtype))
    files = write_parameters(out, tensors, layout, lambda _: None, SMALL_CHUNK)
    return [
        {name: torch.frombuffer(bytearray(data), dtype=dtype) for name, data in archive_entries(file).items()}
        for file in files
    ]


def test_ranks_parts_put_together_are_the_checkpoint(model: Path, tmp_path: Path) -> None:
    whole = load_file(model / "model.safetensors")
    ranks = write(model, tmp_path / "out", 2, torch.float32)
    layer = "model.layers.1."
    rows = [rank[f"rank{r}.{layer}mlp.up_proj.weight"].view(-1, 64) for r, rank in enumerate(ranks)]
    columns = [rank[f"rank{r}.{layer}mlp.down_proj.weight"].view(64, -1) for r, rank in enumerate(ranks)]
    bias = [rank[f"rank{r}.{layer}self_attn.q_proj.bias"] for r, rank in enumerate(ranks)]
    assert torch.equal(torch.cat(rows), whole[f"{layer}mlp.up_proj.weight"])
    assert torch.equal(torch.cat(columns, dim=1), whole[f"{layer}mlp.down_proj.weight"])
    assert torch.equal(torch.cat(bias), whole[f"{layer}self_attn.q_proj.bias"])
    assert torch.equal(ranks[0]["rank0.model.norm.weight"], whole["model.norm.weight"])
    assert torch.equal(ranks[1]["rank1.model.norm.weight"], whole["model.norm.weight"])  # each rank norms by itself


def test_a_layers_parameters_are_one_entry_that_programs_take_whole(model: Path, tmp_path: Path) -> None:
    (parameters,) = write(model, tmp_path / "out", 1, torch.float32)
    layer = parameters["rank0.model.layers.1"]
    of_layer = {name: data for name, data in parameters.items() if name.startswith("rank0.model.layers.1.")}
    assert len(of_layer) == 12
    at = 0
    for data in of_layer.values():
        at = -(-at // 64) * 64
        assert torch.equal(layer[at : at + len(data)], data)
        at += len(data)
    assert at == len(layer)


def test_key_value_heads_fewer_than_ranks_are_repeated_in_order(model: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    heads = load_file(model / "model.safetensors")[name].chunk(2)
    ranks = write(model, tmp_path / "out", 8, torch.float32)
    for rank, parameters in enumerate(ranks):
        assert torch.equal(parameters[f"rank{rank}.{name}"].view(-1, 64), heads[rank * 2 // 8])


def test_a_bias_that_is_added_after_the_sum_is_held_by_one_rank(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama", attention_bias=True)
    name = "model.layers.0.self_attn.o_proj.bias"
    ranks = write(folder, tmp_path / "out", 2, torch.float32)
    assert torch.equal(ranks[0][f"rank0.{name}"], load_file(folder / "model.safetensors")[name])
    assert not ranks[1][f"rank1.{name}"].any()


def test_weights_are_converted_to_the_precision(model: Path, tmp_path: Path) -> None:
    whole = load_file(model / "model.safetensors")["lm_head.weight"]
    (rank,) = write(model, tmp_path / "out", 1, torch.bfloat16)
    assert torch.equal(rank["rank0.lm_head.weight"], whole.bfloat16().flatten())


def test_a_sharded_checkpoint_is_written_like_a_single_file(tmp_path: Path) -> None:
    single = make_checkpoint(tmp_path / "one", "llama")
    sharded = make_checkpoint(tmp_path / "many", "llama", shard_bytes="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    write(single, tmp_path / "a", 1, torch.float16)
    write(sharded, tmp_path / "b", 1, torch.float16)
    first, second = (tmp_path / name / "model.rank0.irpa" for name in "ab")
    assert archive_entries(first) == archive_entries(second)


def test_iree_reads_back_what_the_archive_writer_wrote(tmp_path: Path) -> None:
    contents = {"a": b"x", "a.longer.name": bytes(range(70)), "empty": b"", "µ": b"12345678" * 1000}
    with ArchiveWriter(tmp_path / "x.irpa", {name: len(data) for name, data in contents.items()}) as archive:
        for name, data in reversed(contents.items()):
            archive.write(name, 0, data)
    assert archive_entries(tmp_path / "x.irpa") == contents


def test_an_archive_that_fails_midway_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ArchiveWriter(tmp_path / "x.irpa", {"a": 4}) as archive:
        archive.write("a", 0, b"1234")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def scramble_the_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:40] = b"\xff" * 32
    file.write_bytes(data)


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def lose_a_tensor(folder: Path) -> None:
    edit(folder, lambda tensors: {name: each for name, each in tensors.items() if "0.mlp.up" not in name})


def misshape_a_tensor(folder: Path) -> None:
    edit(
        folder,
        lambda tensors: {name: each[:-1].clone() if "1.mlp.up" in name else each for name, each in tensors.items()},
    )


def quantize_a_tensor(folder: Path) -> None:
    edit(
        folder,
        lambda tensors: {name: each.to(torch.int8) if "norm" in name else each for name, each in tensors.items()},
    )


def lose_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def name_a_shard_that_is_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    weights = {"lm_head.weight": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


def name_a_shard_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../../etc/passwd"}}))


def enlarge_the_tokenizer(folder: Path) -> None:
    make_tokenizer(folder, more_tokens=300)


def break_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": ')


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Rewrite a checkpoint's tensors."""
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "model.safetensors is truncated: tensor .* ends at byte"),
        (scramble_the_header, "the header of .*model.safetensors is corrupt"),
        (empty, "model.safetensors is not a safetensors file"),
        (lose_a_tensor, "no safetensors file holds the tensor model.layers.0.mlp.up_proj.weight"),
        (
            misshape_a_tensor,
            r"model.layers.1.mlp.up_proj.weight has shape \[127, 64\], the config calls for \[128, 64\]",
        ),
        (quantize_a_tensor, "is of type I8; known are F64, F32, F16, BF16"),
        (lose_the_weights, "has neither model.safetensors nor model.safetensors.index.json"),
        (name_a_shard_that_is_missing, "names model-00002-of-00002.safetensors, which is missing"),
        (name_a_shard_elsewhere, "which is not a safetensors file beside it"),
        (enlarge_the_tokenizer, r"has 3\d\d tokens, but the model embeds only 256 \(vocab_size\)"),
        (break_the_tokenizer, "the tokenizer in .* cannot be loaded"),
    ],
)
def test_a_damaged_model_is_refused_with_file_and_tensor(
    model: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(model)
    with pytest.raises(BadInput, match=message):
        check(load_model(str(model), None, {}), CheckRequest())


def problems(folder: Path, *precisions: str) -> list[tuple[str, str]]:
    """The problems of programs in these precisions, without looking at the weights."""
    listed = check(load_model(str(folder), None, {}), CheckRequest(precisions=precisions), weights=False)["problems"]
    return [(problem["module"], problem["reason"]) for problem in listed]


def test_a_precision_that_a_model_does_not_come_in_is_refused(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    held = quantization_config(QuantizedLayout(QuantizationScheme("int8", "channel")))
    (model / "config.json").write_text(json.dumps({**config, KEY: held}))
    assert not problems(model, "int8")
    reason = "its weights are int8, and the job asks for f16: give precision int8"
    assert problems(model, "int8", "f16") == [("config.json", reason)]


def test_groups_that_do_not_divide_a_model_are_refused_before_it_is_quantized(model: Path) -> None:
    loaded = load_model(str(model), None, {})
    assert not check(loaded, CheckRequest(int4=[Int4Grouping.of("2:32"), Int4Grouping.of("4:16")]), weights=False)[
        "problems"
    ]
    with pytest.raises(BadInput, match="groups of 48 do not divide weights of 64 columns: leave group_size out"):
        check(loaded, CheckRequest(int4=[Int4Grouping.of("1:48")]), weights=False)


def test_experts_in_few_bits_are_refused(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", "mixtral")
    assert not problems(model, "f16", "bf16")
    reason = "weights of experts can't be held in fp8: give f16 or bf16"
    assert problems(model, "f16", "fp8") == [("model.layers.*.mlp.experts", reason)]


def test_a_family_that_can_t_be_exported_is_refused_with_the_module(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"model_type": "falcon", "vocab_size": 256, "hidden_size": 568}))
    with pytest.raises(BadInput, match=r"self_attention: the family falcon .* attention classes of its own"):
        problems(model)


def test_a_header_may_not_claim_more_than_the_file_has(model: Path) -> None:
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(BadInput, match="no complete header"):
        read_checkpoint(model)


def test_the_digest_follows_config_weights_and_tokenizer_but_not_the_place(tmp_path: Path) -> None:
    def of(folder: Path, **overrides: int) -> str:
        model = load_model(str(folder), None, overrides)
        files = file_digests(files_of(model), ContentDigests(tmp_path / "inputs"), is_hub=False)
        assert files
        return model_digest(config_digest(model), files)

    original, copy = (make_checkpoint(tmp_path / name, "llama") for name in ("here", "there"))
    other = make_checkpoint(tmp_path / "other", "llama", seed=1)
    assert of(original) == of(copy)
    assert len({of(original), of(other), of(original, num_hidden_layers=1)}) == 3
    make_tokenizer(copy, more_tokens=1)
    assert of(original) != of(copy)


def test_a_file_in_the_hub_cache_is_known_by_its_blob_and_not_read(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    blob.write_bytes(bytes(80))
    link = tmp_path / "model.safetensors"
    link.symlink_to(blob)
    digests = ContentDigests(tmp_path / "inputs")
    assert file_digests([link], digests, is_hub=True) == {link.name: blob.name}
    assert file_digests([link], digests, is_hub=False) == {link.name: sha256(bytes(80)).hexdigest()}
