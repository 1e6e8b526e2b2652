"""Families of models beyond llama's close kin: what sets each apart survives the split and the export."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.llm.test_export import (
    CACHE_LENGTH,
    DYNAMIC,
    TOLERANCE,
    ExportCase,
    assert_nothing_lasting_is_copied,
    checkpoint,
    compile_for_cpu,
    flags,
    largest_difference,
    store_other_head,
)
from tests.integration.models import make_checkpoint
from tests.integration.stage_programs import NARROW, run_here
from workers.llm.command_line import BadInput
from workers.llm.models.model_source import load_model
from workers.llm.numerics.reference import load_reference
from workers.llm.programs import check, export
from workers.llm.runtime.iree_session import IreeSession

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [4.0, 6.0, 8.0, 12.0],
}
PHI3 = {"rope_parameters": LONGROPE, "original_max_position_embeddings": CACHE_LENGTH}
CASES = [
    ExportCase("gemma2", 1, attention="eager"),  # capped scores, two kinds of layer, scaled embeddings
    # of the others, the residual stream of the prompts is in shares, the last of which is smaller
    # queries, keys and values of a head side by side; layers in parallel; keys that mean nothing to it
    ExportCase("gpt_neox", 2, batch=(3,), config={"num_key_value_heads": 3, "head_dim": 20}),
    ExportCase("mixtral", 2, batch=(3,), prompt_tokens=(13,)),  # experts, stored one by one
    # norms over the whole width; layers whose chains are longer on several devices than any other family's
    ExportCase("olmo2", 4, batch=(5,), prompt_tokens=(13,), config={"num_key_value_heads": 2}),
    # packed projections; other rotary factors for texts that are longer than the cache
    ExportCase("phi3", 4, batch=(6,), config={"num_key_value_heads": 2, **PHI3}),
]
#: families that haloctl has no row for, with what is their own
UNKNOWN = [
    ("cohere2", "sdpa", {"sliding_window": 5}),
    ("gemma3_text", "eager", {"sliding_window": 5, "query_pre_attn_scalar": 8}),
    ("qwen3_moe", "sdpa", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_family_computes_what_transformers_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: ExportCase
) -> None:
    model = checkpoint(tmp_path, case)
    argv = f"export --model={model} --precision={case.precision} --tp={case.tp} --attention={case.attention}"
    (batch,), (prompt_tokens,) = case.batch, case.prompt_tokens
    sizes = [f"--batch={batch}", f"--prompt-tokens={prompt_tokens}", "--cache-length=36"]
    monkeypatch.setattr(sys, "argv", [*argv.split(), *sizes])
    monkeypatch.chdir(tmp_path)
    export.main()
    module = compile_for_cpu(tmp_path, case.tp, NARROW)
    session = IreeSession(tmp_path / "outputs/config.json", module, ["local-task"] * case.tp)
    assert largest_difference(session, model, batch, prompt_tokens) < TOLERANCE[case.precision]
    assert_nothing_lasting_is_copied(tmp_path, case.tp)


def test_keys_that_say_how_code_is_called_are_not_the_models(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", "llama", return_dict=False, use_cache=False)
    run_here(export.main, tmp_path, *flags(model, ExportCase("llama", 1)))
    config = json.loads((tmp_path / "outputs/config.json").read_text())["model"]["config"]
    assert config["return_dict"] and config["use_cache"]


def test_the_reference_computes_experts_of_any_width(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", "mixtral", intermediate_size=50)  # rows of 200 bytes
    reference = load_reference(load_model(str(model), None, {}))
    assert reference.losses(torch.arange(3, 23).view(2, 10), 5).isfinite().all()


def test_capped_scores_are_refused_with_attention_that_cannot_cap(
    tmp_path: Path,
) -> None:
    model = checkpoint(tmp_path, CASES[0])
    refused = check.answer([f"--model={model}", "--attention", "eager", "sdpa"])["refused"]
    assert re.search(r"self_attn: .*attn_logit_softcapping.* use attention: eager", refused)


@pytest.mark.parametrize(
    ("family", "config", "why"),
    [
        (
            "phi3",
            PHI3,
            "can have the 36 in which rope type longrope is one set of factors (original_max_position_embed",
        ),
        (
            "llama",
            {"rope_parameters": DYNAMIC, "max_position_embeddings": 36},
            "can have the 36 in which rope type dynamic is one set of factors (max_position_embeddings)",
        ),
    ],
    ids=["longrope", "dynamic"],
)
def test_texts_with_other_rotary_factors_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    config: dict[str, Any],
    why: str,
) -> None:
    model = make_checkpoint(tmp_path / "model", family, **config)
    for length, reasons in ((CACHE_LENGTH, []), (CACHE_LENGTH + 1, [why])):
        problems = check.answer([f"--model={model}", f"--cache-length={length}"])["problems"]
        assert len(problems) == len(reasons)
        assert all(reason in problem["reason"] for reason, problem in zip(reasons, problems, strict=True))
    monkeypatch.setattr(sys, "argv", ["export", *flags(model, ExportCase(family, 1)), f"--cache-length={length}"])
    with pytest.raises(BadInput, match=re.escape("--cache-length 37: prompt and new tokens need 37 positions; a prog")):
        export.main()


def test_a_head_that_the_config_ties_and_the_file_does_not_is_a_warning_of_the_check(
    tmp_path: Path,
) -> None:
    model = make_checkpoint(tmp_path / "model", "llama", tie_word_embeddings=True)
    store_other_head(model)
    (warning,) = check.answer([f"--model={model}"])["warnings"]
    assert (
        warning
        == "the config ties lm_head.weight to model.embed_tokens.weight, but they are stored with different values"
    )


@pytest.mark.parametrize(("family", "kernel", "config"), UNKNOWN, ids=[row[0] for row in UNKNOWN])
def test_a_family_without_a_row_is_exported_where_it_is_what_transformers_computes(
    tmp_path: Path, family: str, kernel: str, config: dict[str, Any]
) -> None:
    model = make_checkpoint(tmp_path / "model", family, **config)
    run_here(export.main, tmp_path, *flags(model, ExportCase(family, 1, attention=kernel)))
    assert json.loads((tmp_path / "outputs/config.json").read_text())["model"]["type"] == family


@pytest.mark.parametrize(
    ("family", "config", "why"),
    [
        # its tokens see those behind them: a program has the whole bucket behind a prompt
        ("llama", {"is_causal": False}, "model.layers.0.self_attn: a program would not compute what transformers comp"),
        ("opt", {"num_hidden_layers": 1}, "transformers ships no plan that names the blocks of a opt's layers"),
    ],
    ids=["bidirectional llama", "opt"],
)
def test_a_model_that_would_be_another_is_refused_at_export_with_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, config: dict[str, Any], why: str
) -> None:
    model = make_checkpoint(tmp_path / "model", family, **config)
    monkeypatch.setattr(sys, "argv", ["export", *flags(model, ExportCase(family, 1))])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=re.escape(why)):
        export.main()
    assert not list((tmp_path / "outputs").iterdir())
