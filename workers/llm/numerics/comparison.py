"""Compare a program, or sharded ranks, with the reference: the authors' code in torch eager at float32.

For every batch size and prompt bucket, rows of different lengths are prefilled and continued with the reference's
greedy tokens, on both sides. Then both score the same windows of held-out text: the runner with one prefill and
`new_tokens` decodes for each window. This only measures; the stage decides whether the result is good enough. A value
that is not finite is reported as None, with `finite` False.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from jobs.models import SHIPPED
from workers.llm.command_line import BadInput, positive_int
from workers.llm.models.model_source import LocalModel, load_tokenizer
from workers.llm.numerics.distances import compare_logits, concatenate, losses, perplexity, summarize
from workers.llm.numerics.reference import ReferenceModel, load_reference

KEPT_WINDOWS = 16
HELD_OUT_TEXT = SHIPPED / "tiny-llama" / "heldout.txt"


class ModelRunner(Protocol):
    """Runs the model: a compiled program, or the ranks of a sharded model."""

    program: dict[str, Any]  #: entry points, batch sizes and prompt buckets, as in the config.json of export

    def prefill(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return logits, float32 [B, 1, V], after the last of each row's `lengths` [B] tokens [B, T]."""

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return logits, float32 [B, 1, V], after one more token [B, 1] at `positions` [B], which count from 0."""


@dataclass(frozen=True)
class ReferenceTrial:
    """Prompts of one batch size B and bucket T, and the reference's continuation of them."""

    prompts: torch.Tensor  #: [B, T]
    lengths: torch.Tensor  #: [B], the length of each row's prompt
    greedy: torch.Tensor  #: [B, N], the reference's greedy tokens
    logits: torch.Tensor  #: [B, N + 1, V], the reference's after the prompt and after each greedy token


@dataclass(frozen=True)
class ReferenceResults:
    """The reference's side of a comparison."""

    trials: list[ReferenceTrial]
    windows: torch.Tensor  #: [count, tokens]
    losses: torch.Tensor  #: [count, new_tokens + 1], of the last tokens of each window


@dataclass(frozen=True)
class RunnerResults:
    """A runner's side of a comparison."""

    trials: list[torch.Tensor]  #: [B, N + 1, V], the logits of each trial
    losses: torch.Tensor  #: [count, new_tokens + 1], of the last tokens of each window
    windows: torch.Tensor  #: [KEPT_WINDOWS, new_tokens + 1, V], the logits of the first windows


def add_comparison_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that determine how much is compared."""
    parser.add_argument("--windows", type=positive_int, default=16, help="windows of text to score")
    parser.add_argument("--new-tokens", type=positive_int, default=32, help="decode steps for each prompt and window")
    parser.add_argument("--text", type=Path, default=HELD_OUT_TEXT, help="UTF-8 text the model was not trained on")


def compute_reference(model: LocalModel, program: dict[str, Any], args: argparse.Namespace) -> ReferenceResults:
    """Run the reference on everything that a runner of `program` is compared with; its memory is freed afterwards."""
    size = max(program["prompt_tokens"]) + args.new_tokens + 1  # the last decode predicts one more
    count = max(args.windows, *program["batch_sizes"])
    windows = take_windows(load_tokenizer(model), args.text, count, size)
    trials, reference_losses = measure_reference(load_reference(model), program, windows, args)
    return ReferenceResults(trials, windows[: args.windows], reference_losses)


def measure(runner: ModelRunner, results: ReferenceResults, args: argparse.Namespace) -> "RunnerResults":
    """Run everything that the reference ran."""
    trials = []
    for trial in results.trials:
        batch, size = trial.prompts.shape
        print(f"program: batch {batch}, {size} prompt tokens", flush=True)
        trials.append(replay(runner, trial.prompts, trial.lengths, trial.greedy))
    print(f"program: scoring {args.windows} windows", flush=True)
    return RunnerResults(trials, *score(runner, results.windows, args.new_tokens))


def compare(results: ReferenceResults, measured: "RunnerResults", args: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    report = compare_trials(results.trials, measured.trials)
    report |= scores(measured.losses, results.losses)
    report["finite"] = report["finite"] and report["perplexity"] is not None
    return report | {"windows": args.windows, "new_tokens": args.new_tokens, "text": args.text.name}


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write a report to a file, and print it without its steps."""
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in report.items() if key != "steps"}), flush=True)


def take_windows(tokenizer: Any, text: Path, count: int, size: int) -> torch.Tensor:
    """Return windows of tokens [count, size], spread evenly over the text.

    Each begins with <s> if the tokenizer puts it before a text. Raises BadInput for a text that is too short.
    """
    try:
        ids = tokenizer(text.read_text(encoding="utf-8"), verbose=False).input_ids
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"the text {text} cannot be read: {problem}") from None
    start = ids[:1] if ids and ids[0] == tokenizer.bos_token_id else []
    tokens, stretch = torch.tensor(ids[len(start) :]), size - len(start)
    if len(tokens) < count * stretch:
        raise BadInput(
            f"the text {text} has {len(tokens)} tokens, {count} windows of {stretch} need {count * stretch}: "
            "give a longer --text, or fewer --windows"
        )
    stretches = tokens.unfold(0, stretch, len(tokens) // count)[:count]
    return torch.cat([torch.tensor(start, dtype=torch.int64).expand(count, -1), stretches], dim=1)


def measure_reference(
    reference: ReferenceModel, program: dict[str, Any], windows: torch.Tensor, args: argparse.Namespace
) -> tuple[list[ReferenceTrial], torch.Tensor]:
    """Return a trial for each prefill entry point, and the reference's losses on the windows."""
    trials = []
    for entry in program["entry_points"]:
        if entry["kind"] == "prefill" and entry["batch"] in program["batch_sizes"]:
            print(f"reference: {entry['name']}, then {args.new_tokens} tokens", flush=True)
            prompts = windows[: entry["batch"], : entry["prompt_tokens"]]
            trials.append(make_trial(reference, prompts, args.new_tokens))
    print(f"reference: scoring {args.windows} windows", flush=True)
    first = windows.shape[1] - args.new_tokens - 1
    batches = torch.split(windows[: args.windows], max(program["batch_sizes"]))
    return trials, torch.cat([reference.losses(batch, first) for batch in batches])


def make_trial(reference: ReferenceModel, prompts: torch.Tensor, new_tokens: int) -> ReferenceTrial:
    """Let the reference continue the prompts, each row's a little shorter than the row before."""
    batch, size = prompts.shape
    lengths = size - torch.arange(batch) * size // (2 * batch)
    greedy, logits = reference.continue_greedily(prompts, lengths, new_tokens)
    return ReferenceTrial(prompts, lengths, greedy, logits)


def compare_trials(trials: list[ReferenceTrial], measured: list[torch.Tensor]) -> dict[str, Any]:
    """Return the distances over all trials, with those of each prefill and the decodes after it in `steps`."""
    steps, parts = [], []
    for trial, logits in zip(trials, measured, strict=True):
        batch, size = trial.prompts.shape
        for kind, at in (("prefill", slice(0, 1)), ("decode", slice(1, None))):
            parts.append(compare_logits(trial.logits[:, at], logits[:, at]))
            steps.append({"kind": kind, "batch": batch, "prompt_tokens": size, **summarize(parts[-1])})
    return {**summarize(concatenate(parts)), "steps": steps}


def replay(runner: ModelRunner, prompts: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the program's logits [B, N + 1, V] after the prompts [B, T] and after each of the tokens [B, N]."""
    logits = [runner.prefill(prompts, lengths)]
    logits += [runner.decode(tokens[:, step, None], lengths + step) for step in range(tokens.shape[1])]
    return torch.cat(logits, dim=1)


def score(runner: ModelRunner, windows: torch.Tensor, new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses of each window's last tokens, and the logits of the first windows, as `RunnerResults` has them.

    The windows are run at the runner's largest batch size.
    """
    batch, first = max(runner.program["batch_sizes"]), windows.shape[1] - new_tokens - 1
    parts: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []
    for group in torch.split(windows, batch):
        rows = group[
            torch.arange(batch) % len(group)
        ]  # the last group may be short: pad it with repeated rows, and drop their logits
        logits = replay(runner, rows[:, :first], torch.full((batch,), first), rows[:, first:-1])[: len(group)]
        parts.append(losses(logits, group[:, first:]))
        kept.append(logits[: max(KEPT_WINDOWS - sum(len(rows) for rows in kept), 0)])
    return torch.cat(parts), torch.cat(kept)


def scores(program_losses: torch.Tensor, reference_losses: torch.Tensor) -> dict[str, Any]:
    """Return both perplexities of the same tokens."""
    return {
        "perplexity": perplexity(program_losses),
        "reference_perplexity": perplexity(reference_losses),
        "tokens_scored": program_losses.numel(),
    }
