"""Families of models beyond llama's close kin: what sets each apart survives the split and the export."""

import sys
from pathlib import Path

import pytest

from tests.integration.llm.test_export import (
    TOLERANCE,
    ExportCase,
    assert_nothing_lasting_is_copied,
    checkpoint,
    compile_for_cpu,
    largest_difference,
)
from tests.integration.stage_programs import NARROW
from workers.llm.command_line import BadInput
from workers.llm.programs import check, export
from workers.llm.runtime.iree_session import IreeSession

CASES = [
    ExportCase("gemma2", 1, attention="eager"),  # capped scores, two kinds of layer, scaled embeddings
    ExportCase("gpt_neox", 2),  # queries, keys and values of a head side by side; layers in parallel
    ExportCase("mixtral", 2),  # experts, stored one by one
    ExportCase("olmo2", 2, config={"num_key_value_heads": 1}),  # norms over the whole width
    ExportCase("phi3", 4, config={"num_key_value_heads": 2}),  # packed projections
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_family_computes_what_transformers_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: ExportCase
) -> None:
    model = checkpoint(tmp_path, case)
    argv = f"export --model={model} --precision={case.precision} --tp={case.tp} --attention={case.attention}"
    monkeypatch.setattr(sys, "argv", [*argv.split(), "--batch=2", "--prompt-tokens=12", "--cache-length=36"])
    monkeypatch.chdir(tmp_path)
    export.main()
    module = compile_for_cpu(tmp_path, case.tp, NARROW)
    session = IreeSession(tmp_path / "outputs/config.json", module, ["local-task"] * case.tp)
    assert largest_difference(session, model, 2, 12) < TOLERANCE[case.precision]
    assert_nothing_lasting_is_copied(tmp_path, case.tp)


def test_capped_scores_are_refused_with_attention_that_cannot_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checkpoint(tmp_path, CASES[0])
    monkeypatch.setattr(sys, "argv", ["check", f"--model={model}", "--attention", "eager", "sdpa"])
    with pytest.raises(BadInput, match=r"self_attn: .*attn_logit_softcapping.* use attention: eager"):
        check.main()
