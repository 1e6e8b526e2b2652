"""Exported programs: what the real programs write compiles, runs, and computes what transformers computes."""

import functools
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.integration.llm.link_traffic import bytes_by_link, executions, steps_of_transfers
from tests.integration.models import make_checkpoint
from tests.integration.stage_programs import NARROW, run_here
from workers.llm.programs import export as export_program
from workers.llm.runtime.iree_session import IreeSession

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
STEPS = 8  #: decode steps after each prefill
CACHE_LENGTH = 36
GIB = 1 << 30
SMALLEST_LAYER_BYTES = 8 << 10  #: of a layer's weights on one of 8 ranks; a prompt's rotary tables are smaller
#: largest difference of a logit from eager f32
TOLERANCE = {"f32": 2e-5, "f16": 5e-2, "bf16": 0.4}


@dataclass(frozen=True)
class ExportCase:
    """A family, changes of its config, and how it is exported."""

    family: str
    tp: int
    precision: str = "f32"
    attention: str = "sdpa"
    batch: tuple[int, ...] = (2,)
    prompt_tokens: tuple[int, ...] = (12,)
    block_tokens: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    has_other_head: bool = False  #: the config ties the head to the embeddings, the file holds other weights for it

    def __str__(self) -> str:
        paged = "" if self.block_tokens is None else "-paged"
        return f"{self.family}-{self.precision}-tp{self.tp}-{self.attention}{paged}"


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}  #: beyond max_position_embeddings
#: Several batch sizes and prompt lengths stand in the fewest: a program for each of them takes seconds to compile.
CASES = [
    # keys that mean nothing to a llama, and a prompt of one token
    ExportCase(
        "llama",
        1,
        batch=(3,),
        prompt_tokens=(1, 20),
        config={"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]},
        has_other_head=True,
    ),
    # the residual stream of the longer prompt is in shares
    ExportCase("llama", 4, "f16", batch=(3,), prompt_tokens=(12, 24), config={"num_key_value_heads": 2}),
    ExportCase("mistral", 2, block_tokens=16, config={"sliding_window": 5}),
    ExportCase(
        "qwen2",
        2,
        attention="eager",
        block_tokens=16,
        config={
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    ExportCase("qwen3", 2, "bf16"),
    ExportCase("llama", 1, "f16", batch=(1, 3), prompt_tokens=(4, 20), block_tokens=32),
    # shares of 17 tokens, and of 14 on the last rank
    ExportCase(
        "llama",
        8,
        batch=(7,),
        prompt_tokens=(19,),
        block_tokens=16,
        config={"rope_parameters": DYNAMIC, "max_position_embeddings": 36},
    ),
    ExportCase("granite", 2, "f16", attention="eager", config={"vocab_size": 255, "tie_word_embeddings": True}),
]


def run(arguments: Sequence[str | Path], folder: Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment in `folder`."""
    path = os.pathsep.join((str(BIN), os.environ["PATH"]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "HF_HUB_OFFLINE": "1"}
    argv = [str(argument) for argument in arguments]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, **kwargs)


def export(
    folder: Path, model: str | Path, case: ExportCase, *extra: str, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
    """Run the export program; its outputs are in `folder`/outputs."""
    folder.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "workers.llm.programs.export", *flags(model, case), *extra]
    return run(argv, folder, **kwargs)


def flags(model: str | Path, case: ExportCase) -> list[str]:
    """The flags of the export program."""
    arguments = ["--model", str(model), "--precision", case.precision]
    arguments += ["--tp", str(case.tp), "--attention", case.attention, "--cache-length", str(CACHE_LENGTH)]
    arguments += ["--batch", *map(str, case.batch), "--prompt-tokens", *map(str, case.prompt_tokens)]
    return arguments if case.block_tokens is None else [*arguments, "--block-tokens", str(case.block_tokens)]


def build(base: Path, case: ExportCase) -> Path:
    """Export and compile a case for the CPU, once; returns the folder that has the program."""
    folder = base / str(case)
    if not folder.exists():
        folder.mkdir()
        run_here(export_program.main, folder, *flags(checkpoint(base, case), case))
        compile_for_cpu(folder, case.tp, NARROW)
    return folder


def compile_for_cpu(folder: Path, tp: int, *extra: str) -> Path:
    """Compile what was exported into `folder`, with `extra` flags."""
    names = ["local"] if tp == 1 else [f"local[{rank}]" for rank in range(tp)]
    argv = [
        "iree-compile",
        "outputs/model.mlir",
        "-o",
        "model.vmfb",
        "--dump-compilation-phases-to=phases",
        "--iree-hal-local-target-device-backends=llvm-cpu",
    ]
    argv += ["--iree-llvmcpu-target-cpu=host", *(f"--iree-hal-target-device={name}" for name in names), *extra]
    done = run(argv, folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "model.vmfb"


def checkpoint(base: Path, case: ExportCase) -> Path:
    """The case's random model."""
    folder = base / f"model-{case}"
    if not folder.exists():
        make_checkpoint(folder, case.family, **case.config)
        if case.has_other_head:
            store_other_head(folder)
    return folder


def store_other_head(model: Path) -> None:
    """Add a head with other weights than the embeddings' to the file of a model whose config ties the two."""
    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


def reference_logits(model: Path, tokens: torch.Tensor, lengths: torch.Tensor, steps: int) -> torch.Tensor:
    """Logits `[batch, 1 + steps, vocab]` from each row's last prompt token on, each row computed alone and unpadded."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    rows = []
    with torch.inference_mode():
        for row, length in zip(tokens, lengths.tolist(), strict=True):
            logits = reference(row[None, : length + steps]).logits[0]
            rows.append(logits[length - 1 : length + steps])
    return torch.stack(rows)


def program_logits(
    session: IreeSession, tokens: torch.Tensor, lengths: torch.Tensor, bucket: int, steps: int, *table: torch.Tensor
) -> torch.Tensor:
    """The program's logits for the same tokens; the padding of the prompts must not matter."""
    padded = torch.full((len(tokens), bucket), 7)
    for row, length in enumerate(lengths.tolist()):
        padded[row, :length] = tokens[row, :length]
    logits = [session.prefill(padded, lengths, *table)]
    for step in range(steps):
        at = lengths + step
        logits.append(session.decode(tokens.gather(1, at[:, None]), at, *table))
        assert logits[-1].argmax(-1).equal(session.decode_greedily(tokens.gather(1, at[:, None]), at, *table))
    return torch.cat(logits, dim=1)


def largest_difference(session: IreeSession, model: Path, batch: int, bucket: int) -> float:
    """Over a prefill with ragged lengths and the decode steps after it."""
    generator = torch.Generator().manual_seed(batch * 100 + bucket)
    tokens = torch.randint(3, 250, (batch, bucket + STEPS), generator=generator)
    lengths = torch.tensor([max(bucket - 3 * row, 1) for row in range(batch)])
    expected = reference_logits(model, tokens, lengths, STEPS)
    logits = program_logits(session, tokens, lengths, bucket, STEPS, *scrambled_table(session, batch, generator))
    return float((logits - expected).abs().max())


def scrambled_table(session: IreeSession, batch: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Blocks from all over the pool, none of them twice, where the cache is paged."""
    for argument in session.program["entry_points"][-1]["arguments"]:
        if argument["name"] == "block_table":
            pool, blocks = argument["pool_blocks"], argument["shape"][1]
            return [1 + torch.randperm(pool - 1, generator=generator)[: batch * blocks].view(batch, blocks)]
    return []


def assert_nothing_lasting_is_copied(folder: Path, tp: int) -> None:
    """Neither the cache in a call, nor weights in a layer."""
    (stream,) = (folder / "phases").glob("*.stream.mlir")
    copies = [line for line in stream.read_text().splitlines() if "stream.cmd.copy" in line]
    assert tp == 1 or copies, "hidden states are copied from device to device"
    assert not [line for line in copies if "resource<variable>" in line]
    layers = "".join(re.findall(r"util\.func private @\w+\.layer0.*?\n  }", stream.read_text(), re.DOTALL))
    assert "inlining_policy = #util.inline.never" in layers
    constants = re.findall(r"stream.cmd.copy .* %c(\d+) : !stream.resource<constant>", layers)
    assert max(map(int, constants), default=0) < SMALLEST_LAYER_BYTES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_program_computes_what_transformers_computes(base: Path, case: ExportCase) -> None:
    model, folder = checkpoint(base, case), build(base, case)
    session = IreeSession(folder / "outputs/config.json", folder / "model.vmfb", ["local-task"] * case.tp)
    for batch in case.batch:
        for bucket in case.prompt_tokens:
            assert largest_difference(session, model, batch, bucket) < TOLERANCE[case.precision], (batch, bucket)
    assert_nothing_lasting_is_copied(folder, case.tp)


@pytest.mark.parametrize(
    ("function", "tokens", "steps"), [("prefill_bs3_t24.layer0", 72, 4), ("decode_bs3_c48.layer0", 3, 2)]
)
def test_no_link_carries_more_than_its_share(base: Path, function: str, tokens: int, steps: int) -> None:
    """A layer sums over the ranks twice: of a prompt in two steps of a share each, of a decode step in one."""
    case = CASES[1]
    (stream,) = (build(base, case) / "phases").glob("*.stream.mlir")
    done = executions(stream.read_text(), function)
    hidden_bytes = tokens * 64 * 2
    copy_bytes = hidden_bytes // (case.tp if steps == 4 else 1)
    assert bytes_by_link(done) == dict.fromkeys(permutations(range(case.tp), 2), steps * copy_bytes)
    assert {size_bytes for execution in done for _, size_bytes in execution.sent} == {copy_bytes}
    assert steps_of_transfers(done) == set(range(1, steps + 1))


def test_copies_of_the_residual_stream_are_computed_by_the_same_kernels(base: Path) -> None:
    """So that they are the same on all ranks to the last bit."""
    case = CASES[1]
    (stream,) = (build(base, case) / "phases").glob("*.stream.mlir")
    done = executions(stream.read_text(), "decode_bs3_c48.layer0")
    first, *others = (
        sorted((each.step, each.kernels) for each in done if each.device == device) for device in range(case.tp)
    )
    assert len(others) == case.tp - 1 and all(kernels == first for kernels in others)


def test_a_row_that_is_out_of_bounds_has_no_logits_and_touches_no_other(base: Path) -> None:
    contiguous, paged = CASES[0], CASES[2]
    for case, wrong_position in ((contiguous, 48), (contiguous, -1), (paged, 96)):
        folder, rows = build(base, case), case.batch[0]
        session = IreeSession(folder / "outputs/config.json", folder / "model.vmfb", ["local-task"] * case.tp)
        bucket = case.prompt_tokens[-1]
        prompts, lengths = torch.arange(rows * bucket).view(rows, bucket) % 200 + 3, torch.full((rows,), bucket - 4)
        expected = [session.prefill(prompts, lengths), session.decode(prompts[:, -1:], lengths)]
        wrong_lengths, wrong_tokens = lengths.clone(), prompts.clone()
        wrong_lengths[0], wrong_tokens[0, 1], wrong_tokens[1, -1] = bucket + 1, 256, -1  # the last is behind its prompt
        assert_only_first_is_missing(session.prefill(prompts, wrong_lengths), expected[0])
        assert_only_first_is_missing(session.prefill(wrong_tokens, lengths), expected[0])
        session.prefill(prompts, lengths)
        wrong_positions = lengths.clone()
        wrong_positions[0] = wrong_position
        assert_only_first_is_missing(session.decode(prompts[:, -1:], wrong_positions), expected[1])
        assert torch.equal(session.decode(prompts[:, -1:], lengths)[1:], expected[1][1:])
    (table,) = scrambled_table(session, paged.batch[0], torch.Generator().manual_seed(0))
    table[0, 0] = table.max() + 1
    session.prefill(prompts, lengths, table)
    assert_only_first_is_missing(session.decode(prompts[:, -1:], lengths, table), expected[1])


def assert_only_first_is_missing(logits: torch.Tensor, expected: torch.Tensor) -> None:
    assert logits[0].isnan().all()
    assert torch.equal(logits[1:], expected[1:])


def test_iree_run_module_takes_plain_inputs_for_every_entry_point(base: Path) -> None:
    folder = build(base, CASES[0])
    for entry in json.loads((folder / "outputs/config.json").read_text())["entry_points"]:
        batch, tokens = entry["arguments"][0]["shape"]
        argv = ["iree-run-module", "--module=model.vmfb", "--device=local-task", f"--function={entry['name']}"]
        argv += ["--parameters=model=outputs/model.rank0.irpa"]
        done = run([*argv, f"--input={batch}x{tokens}xi64=5", f"--input={batch}xi64={tokens}"], folder)
        assert done.returncode == 0, done.stderr
        assert f"{batch}x1x256xf32=" in done.stdout


def test_405b_exports_from_its_shape_in_seconds_and_little_memory(base: Path) -> None:
    case = ExportCase("llama", 8, "f16", batch=(1,), prompt_tokens=(32,))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = export(base / "405b", "shape:llama3.1-405b", case)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime - before.ru_utime < 60, "of processor time: others may use the machine too"
    outputs = base / "405b/outputs"
    report = json.loads((outputs / "export.json").read_text())
    assert report["peak_rss_bytes"] < GIB
    assert report["layer_kinds"] == 1
    assert sorted(path.name for path in outputs.iterdir()) == ["config.json", "export.json", "model.mlir"]
    text = (outputs / "model.mlir").read_text()
    assert text.count("inlining_policy = #util.inline.never") == 2


def test_a_split_that_does_not_divide_is_refused_with_module_and_reason(tmp_path: Path) -> None:
    config: dict[str, Any] = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
    model = make_checkpoint(tmp_path / "model", "llama", **config)
    done = export(tmp_path / "run", model, ExportCase("llama", 2))
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "self_attn.k_proj" in line
    assert "3 key/value heads" in line
    assert list((tmp_path / "run/outputs").iterdir()) == []


def test_a_full_disk_is_one_clear_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", "llama")
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    done = export(tmp_path / "run", model, ExportCase("llama", 1), preexec_fn=limit)
    assert done.returncode == 2, done.stderr
    assert "model.rank0.irpa could not be written: File too large" in done.stderr
    assert list((tmp_path / "run/outputs").iterdir()) == []
