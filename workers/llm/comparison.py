"""Compare what runs a model with the model as its authors wrote it, in torch eager at float32.

For every batch size and prompt bucket, rows of different lengths are prefilled and continued by the reference's greedy
tokens, which both sides are given. Then both score the same windows of held-out text: the runner by one prefill and
`new_tokens` decodes a window. It only measures: whether that is good enough is said elsewhere. A value that is not
finite is None, and `finite` is False.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from jobs.models import SHIPPED
from workers.llm.distances import distances, joined, losses, perplexity, summary
from workers.llm.model_source import Model, load_tokenizer
from workers.llm.program import BadInput, positive
from workers.llm.reference import Reference, load_reference

HELD_OUT_TEXT = SHIPPED / "tiny-llama" / "heldout.txt"


class Runner(Protocol):
    """What runs the model: a compiled program, or the ranks of a sharded one."""

    program: dict[str, Any]  #: its entry points, batch sizes and prompt buckets, as a config.json of export has them

    def prefill(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [B, 1, V], after the last of each row's `lengths` [B] tokens [B, T]."""

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [B, 1, V], after one more token [B, 1] at `positions` [B], which count from 0."""


@dataclass(frozen=True)
class Trial:
    """Prompts for one batch size B and bucket T, and what the reference made of them."""

    prompts: torch.Tensor  #: [B, T]
    lengths: torch.Tensor  #: [B], the tokens of each row that count
    greedy: torch.Tensor  #: [B, N], the reference's tokens
    logits: torch.Tensor  #: [B, N + 1, V], the reference's after the prompt and after each of its tokens


@dataclass(frozen=True)
class Expected:
    """The reference's side of a comparison."""

    trials: list[Trial]
    windows: torch.Tensor  #: [count, tokens]
    losses: torch.Tensor  #: [count, new_tokens + 1], of the last tokens of each window


def add_comparison_arguments(parser: argparse.ArgumentParser) -> None:
    """How much is compared."""
    parser.add_argument("--windows", type=positive, default=16, help="windows of text that both score")
    parser.add_argument("--new-tokens", type=positive, default=32, help="decode steps of each comparison and window")
    parser.add_argument("--text", type=Path, default=HELD_OUT_TEXT, help="UTF-8 text the model was not trained on")


def expect(model: Model, program: dict[str, Any], args: argparse.Namespace) -> Expected:
    """Let the reference do what a runner of `program` will be measured by; it is gone afterwards."""
    size = max(program["prompt_tokens"]) + args.new_tokens + 1  # the last decode predicts one more
    count = max(args.windows, *program["batch_sizes"])
    windows = take_windows(load_tokenizer(model), args.text, count, size)
    trials, reference_losses = measure_reference(load_reference(model), program, windows, args)
    return Expected(trials, windows[: args.windows], reference_losses)


def measure(runner: Runner, expected: Expected, args: argparse.Namespace) -> dict[str, Any]:
    """The report on a runner."""
    report = compare(runner, expected.trials)
    print(f"program: scoring {args.windows} windows", flush=True)
    report |= scores(score(runner, expected.windows, args.new_tokens), expected.losses)
    report["finite"] = report["finite"] and report["perplexity"] is not None
    return report | {"windows": args.windows, "new_tokens": args.new_tokens, "text": args.text.name}


def write(report: dict[str, Any], path: Path) -> None:
    """Keep a report, and print it without its steps."""
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in report.items() if key != "steps"}), flush=True)


def take_windows(tokenizer: Any, text: Path, count: int, size: int) -> torch.Tensor:
    """Windows of tokens [count, size] from all over the text, each led by <s> if the tokenizer gives it to a text."""
    try:
        ids = tokenizer(text.read_text(encoding="utf-8"), verbose=False).input_ids
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"the text {text} cannot be read: {problem}") from None
    start = ids[:1] if ids and ids[0] == tokenizer.bos_token_id else []
    tokens, own_size = torch.tensor(ids[len(start) :]), size - len(start)
    if len(tokens) < count * own_size:
        raise BadInput(
            f"the text {text} has {len(tokens)} tokens, {count} windows of {own_size} need {count * own_size}: "
            "give a longer --text, or fewer --windows"
        )
    stretches = tokens.unfold(0, own_size, len(tokens) // count)[:count]
    return torch.cat([torch.tensor(start, dtype=torch.int64).expand(count, -1), stretches], dim=1)


def measure_reference(
    reference: Reference, program: dict[str, Any], windows: torch.Tensor, args: argparse.Namespace
) -> tuple[list[Trial], torch.Tensor]:
    """The reference's side of everything: a trial for each prefill entry point, and its losses on the windows."""
    trials = []
    for entry in program["entry_points"]:
        if entry["kind"] == "prefill":
            print(f"reference: {entry['name']}, then {args.new_tokens} tokens", flush=True)
            prompts = windows[: entry["batch"], : entry["prompt_tokens"]]
            trials.append(make_trial(reference, prompts, args.new_tokens))
    print(f"reference: scoring {args.windows} windows", flush=True)
    first = windows.shape[1] - args.new_tokens - 1
    batches = torch.split(windows[: args.windows], max(program["batch_sizes"]))
    return trials, torch.cat([reference.losses(batch, first) for batch in batches])


def make_trial(reference: Reference, prompts: torch.Tensor, new_tokens: int) -> Trial:
    """Let the reference continue the prompts, each row's a little shorter than the one before."""
    batch, size = prompts.shape
    lengths = size - torch.arange(batch) * size // (2 * batch)
    greedy, logits = reference.continue_greedily(prompts, lengths, new_tokens)
    return Trial(prompts, lengths, greedy, logits)


def compare(runner: Runner, trials: list[Trial]) -> dict[str, Any]:
    """Distances over all trials, and for each prefill and the decodes after it in `steps`."""
    steps, parts = [], []
    for trial in trials:
        batch, size = trial.prompts.shape
        print(f"program: batch {batch}, {size} prompt tokens", flush=True)
        measured = replay(runner, trial.prompts, trial.lengths, trial.greedy)
        for kind, at in (("prefill", slice(0, 1)), ("decode", slice(1, None))):
            parts.append(distances(trial.logits[:, at], measured[:, at]))
            steps.append({"kind": kind, "batch": batch, "prompt_tokens": size, **summary(parts[-1])})
    return {**summary(joined(parts)), "steps": steps}


def replay(runner: Runner, prompts: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The program's logits [B, N + 1, V] after the prompts [B, T] and after each of the tokens [B, N] given next."""
    logits = [runner.prefill(prompts, lengths)]
    logits += [runner.decode(tokens[:, step, None], lengths + step) for step in range(tokens.shape[1])]
    return torch.cat(logits, dim=1)


def score(runner: Runner, windows: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """The program's losses [windows, new_tokens + 1] on the last tokens of each window, at its largest batch size."""
    batch, first = max(runner.program["batch_sizes"]), windows.shape[1] - new_tokens - 1
    parts = []
    for group in torch.split(windows, batch):
        rows = group[torch.arange(batch) % len(group)]  # the last group may be short: fill it up, drop what was added
        logits = replay(runner, rows[:, :first], torch.full((batch,), first), rows[:, first:-1])
        parts.append(losses(logits, rows[:, first:])[: len(group)])
    return torch.cat(parts)


def scores(program_losses: torch.Tensor, reference_losses: torch.Tensor) -> dict[str, Any]:
    """Both perplexities of the same tokens."""
    return {
        "perplexity": perplexity(program_losses),
        "reference_perplexity": perplexity(reference_losses),
        "tokens_scored": program_losses.numel(),
    }
