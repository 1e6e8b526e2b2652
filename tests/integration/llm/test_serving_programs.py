"""What a server calls: prompts in parts, scores and samples are what eager torch computes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.integration.llm.test_export import TOLERANCE, compile_for_cpu
from tests.integration.models import make_checkpoint
from tests.integration.stage_programs import NARROW, run_here
from workers.llm.export.sampling import sample
from workers.llm.programs import export, invoke
from workers.llm.runtime.iree_session import IreeSession, to_host

CHUNK, LENGTH, BLOCK, POOL = 16, 200, 16, 30
LENGTHS = torch.tensor([75, 40])  #: of the rows' texts
#: temperature, top_k, top_p and seeds of a batch
GREEDY = torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.ones(2), torch.zeros(2, dtype=torch.int64)


@dataclass(frozen=True)
class ServingCase:
    """A program for a server."""

    tp: int
    precision: str
    family: str = "llama"
    config: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.family}-{self.precision}-tp{self.tp}"


CASES = [ServingCase(1, "f32"), ServingCase(2, "f16", "mistral", {"sliding_window": 21})]


class ServedProgram:
    """A program whose rows have blocks from all over the pool, and the reference's logits of their texts."""

    def __init__(self, folder: Path, case: ServingCase) -> None:
        self.tolerance = TOLERANCE[case.precision]
        model = make_checkpoint(folder / "model", case.family, **case.config)
        flags = [
            "--model",
            str(model),
            "--precision",
            case.precision,
            "--tp",
            str(case.tp),
            "--cache-length",
            str(LENGTH),
        ]
        flags += ["--batch", "2", "--prompt-tokens", "20", "--block-tokens", str(BLOCK), "--chunk-tokens", str(CHUNK)]
        flags += ["--decode-batch", "2", "--prefill-batch", "2", "--kv-pool-blocks", str(POOL)]
        run_here(export.main, folder, *flags)
        compile_for_cpu(folder, case.tp, NARROW)
        self.session = IreeSession(folder / "outputs/config.json", folder / "model.vmfb", ["local-task"] * case.tp)
        self.entries = {entry["name"]: entry for entry in self.session.program["entry_points"]}
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(3, 250, (2, LENGTH), generator=generator)
        self.table = 1 + torch.randperm(POOL - 1, generator=generator)[:26].view(2, 13)
        reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
        with torch.inference_mode():
            self.logits = reference(self.tokens).logits

    def call(self, name: str, *arguments: Any, table: torch.Tensor | None = None) -> dict[str, Any]:
        return self.session.call(name, *arguments, table=table)

    def name_of(self, kind: str, batch: int, context: int) -> str:
        """The entry point with the smallest context that holds so many slots."""
        known = [entry for entry in self.entries.values() if (entry["kind"], entry["batch"]) == (kind, batch)]
        return str(min((e for e in known if e["context"] >= context), key=lambda entry: entry["context"])["name"])


@pytest.fixture(scope="module", params=CASES, ids=str)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedProgram:
    return ServedProgram(tmp_path_factory.mktemp("serving"), request.param)


def parts(lengths: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Starts and counts of each call that takes the rows' texts in parts; a short row's last part is done again."""
    calls = []
    for start in range(0, int(lengths.max()), CHUNK):
        starts = torch.minimum(torch.full_like(lengths, start), (lengths - 1) // CHUNK * CHUNK)
        calls.append((starts, (lengths - starts).clamp(max=CHUNK)))
    return calls


def part_of(tokens: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    return torch.stack([row[start : start + CHUNK] for row, start in zip(tokens, starts.tolist(), strict=True)])


def test_a_prompt_in_parts_and_decodes_after_it_are_the_models(served: ServedProgram) -> None:
    for starts, counts in parts(LENGTHS):
        ends = starts + counts
        tokens = part_of(served.tokens, starts)
        tokens[torch.arange(CHUNK)[None] >= counts[:, None]] = 999  # behind a row's tokens may stand anything
        name = served.name_of("extend", 2, int(ends.max()))
        results = served.call(name, tokens, counts, starts, table=served.table)
        expected = served.logits[torch.arange(2), ends - 1]
        assert (to_host(results["logits"])[:, 0] - expected).abs().max() < served.tolerance
    for step in range(4):
        at = LENGTHS + step
        logits = served.session.decode(served.tokens.gather(1, at[:, None]), at, served.table)
        assert (logits[:, 0] - served.logits[torch.arange(2), at]).abs().max() < served.tolerance


def test_a_row_that_only_fills_a_batch_is_nobodys(served: ServedProgram) -> None:
    """It has no numbers, and what it writes is in no row."""
    for starts, counts in parts(LENGTHS):
        name = served.name_of("extend", 2, int((starts + counts).max()))
        served.call(name, part_of(served.tokens, starts), counts, starts, table=served.table)
    tokens, table = served.tokens.gather(1, LENGTHS[:, None]), served.table.clone()
    tokens[1], table[1] = 7, 0
    for _ in range(2):
        logits = served.session.decode(tokens, LENGTHS, table)
        assert (logits[0, 0] - served.logits[0, LENGTHS[0]]).abs().max() < served.tolerance
        assert logits[1].isnan().all()
        assert served.session.decode_greedily(tokens, LENGTHS, table)[1] == -1
    logits = served.session.decode(served.tokens.gather(1, LENGTHS[:, None]), LENGTHS, served.table)
    assert (logits[:, 0] - served.logits[torch.arange(2), LENGTHS]).abs().max() < served.tolerance


def test_scores_are_the_models_and_fill_the_cache(served: ServedProgram) -> None:
    expected = served.logits.log_softmax(-1)
    for starts, counts in parts(LENGTHS):
        name = served.name_of("score", 2, int((starts + counts).max()))
        targets = part_of(served.tokens.roll(-1, dims=1), starts)
        targets[:, 5] = -1
        results = served.call(name, part_of(served.tokens, starts), counts, starts, targets, table=served.table)
        logprobs, best = to_host(results["logprobs"]), to_host(results["best_tokens"])
        for row, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
            has_target = torch.tensor([place != 5 for place in range(count)])
            scored = expected[row, start : start + count]
            wanted = scored.gather(1, targets[row, :count, None].clamp(min=0))[:, 0]
            assert (logprobs[row, :count] - wanted)[has_target].abs().max() < served.tolerance
            assert logprobs[row, :count][~has_target].isnan().all()
            assert logprobs[row, count:].isnan().all()
            assert (scored.amax(-1) - scored.gather(1, best[row, :count, None])[:, 0]).max() < served.tolerance
            assert (to_host(results["best_logprobs"])[row, :count] - scored.amax(-1)).abs().max() < served.tolerance
            assert (best[row, count:] == -1).all()
    at = LENGTHS
    logits = served.session.decode(served.tokens.gather(1, at[:, None]), at, served.table)
    assert (logits[:, 0] - served.logits[torch.arange(2), at]).abs().max() < served.tolerance


def draw(served: ServedProgram, logits: Any, *options: torch.Tensor) -> torch.Tensor:
    return to_host(served.call("sample_bs2", logits, *options)["next_tokens"])


def test_a_sample_is_what_torch_draws_from_the_same_numbers(served: ServedProgram) -> None:
    """Its distribution is tested in tests/unit/llm/test_sampling.py."""
    tokens, lengths = served.tokens[:, :20], torch.tensor([20, 11])
    results = served.call("prefill_bs2_t20", tokens, lengths, table=served.table)
    logits = torch.from_numpy(results["logits"].to_host().copy())
    nobodys = draw(served, logits * torch.tensor([[[1.0]], [[float("nan")]]]), *GREEDY)
    assert nobodys.tolist() == [int(logits[0].argmax()), -1]
    assert draw(served, results["logits"], *GREEDY).equal(logits[:, 0].argmax(-1))
    drawn = set()
    for seed in range(60):
        options = (
            torch.tensor([0.7, 1.5]),
            torch.tensor([0, 40]) if seed % 2 else torch.tensor([3, 0]),
            torch.tensor([0.9, 1.0]) if seed % 3 else torch.tensor([1.0, 0.4]),
            torch.tensor([seed, (seed << 40) + 5]),
        )
        chosen = draw(served, results["logits"], *options)
        assert chosen.equal(sample(logits, *options)), seed
        drawn.add(tuple(chosen.tolist()))
    assert len(drawn) > 20


def test_every_entry_point_that_a_server_calls_can_be_invoked(served: ServedProgram) -> None:
    calls = [invoke.invoke(served.session, entry) for entry in invoke.in_order(list(served.entries.values()))]
    assert {call["entry_point"].partition("_")[0] for call in calls} == {
        "prefill",
        "decode",
        "extend",
        "score",
        "sample",
    }
    assert all(call["finite"] for call in calls)
