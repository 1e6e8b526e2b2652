r"""Measure how far a compiled program is from the model it was made of: logits, choices, distributions, perplexity.

    python -m workers.llm.numerics --model tiny-llama --program inputs/export/config.json \
        --module inputs/compile/model.vmfb --device local-task --windows 16 --new-tokens 32

The reference is the same model in torch eager at float32. For every batch size and prompt bucket, rows of different
lengths are prefilled and continued by the reference's greedy tokens, which both sides are given. Then both score the
same windows of held-out text: the program by one prefill and `new_tokens` decodes a window. Writes
outputs/numerics.json. It only measures: whether that is good enough is said elsewhere. A value that is not finite is
null there, and `finite` is false.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from jobs.models import SHIPPED
from workers.llm.distances import distances, joined, losses, perplexity, summary
from workers.llm.invoke import add_program_arguments
from workers.llm.model_source import Model, load_model, load_tokenizer
from workers.llm.program import BadInput, add_model_arguments, parse_overrides, run
from workers.llm.reference import Reference, load_reference
from workers.llm.session import Session, read_program

REPORT = Path("outputs/numerics.json")
HELD_OUT_TEXT = SHIPPED / "tiny-llama" / "heldout.txt"


@dataclass(frozen=True)
class Trial:
    """Prompts for one batch size B and bucket T, and what the reference made of them."""

    prompts: torch.Tensor  #: [B, T]
    lengths: torch.Tensor  #: [B], the tokens of each row that count
    greedy: torch.Tensor  #: [B, N], the reference's tokens
    logits: torch.Tensor  #: [B, N + 1, V], the reference's after the prompt and after each of its tokens


def main() -> None:
    """Measure the program against the reference."""
    args = _arguments()
    program = read_program(args.program)
    check_cache(program, args.new_tokens)
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    check_vocabulary(model, program)
    size = max(program["prompt_tokens"]) + args.new_tokens + 1  # the last decode predicts one more
    count = max(args.windows, *program["batch_sizes"])
    windows = take_windows(load_tokenizer(model), args.text, count, size)

    # The reference is gone before the program's parameters are loaded: memory holds one model at a time.
    trials, reference_losses = measure_reference(load_reference(model), program, windows, args)
    session = Session(args.program, args.module, args.device)
    report = compare(session, trials)
    print(f"program: scoring {args.windows} windows", flush=True)
    report |= scores(score(session, windows[: args.windows], args.new_tokens), reference_losses)
    report["finite"] = report["finite"] and report["perplexity"] is not None
    report |= {"windows": args.windows, "new_tokens": args.new_tokens, "text": args.text.name}
    REPORT.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in report.items() if key != "steps"}), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.llm.numerics", description=__doc__.split("\n")[0])
    add_model_arguments(parser)
    add_program_arguments(parser)
    parser.add_argument("--windows", type=_positive, default=16, help="windows of text that both score")
    parser.add_argument("--new-tokens", type=_positive, default=32, help="decode steps of each comparison and window")
    parser.add_argument("--text", type=Path, default=HELD_OUT_TEXT, help="UTF-8 text the model was not trained on")
    return parser.parse_args()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def check_cache(program: dict[str, Any], new_tokens: int) -> None:
    """Raise BadInput when the longest prompt and the new tokens do not fit in the program's cache."""
    prompt_tokens, length = max(program["prompt_tokens"]), program["cache_length"]
    if prompt_tokens + new_tokens > length:
        raise BadInput(
            f"--new-tokens {new_tokens} after {prompt_tokens} prompt tokens does not fit in the program's cache of "
            f"{length}: give at most --new-tokens {length - prompt_tokens}, or export with a longer --cache-length"
        )


def check_vocabulary(model: Model, program: dict[str, Any]) -> None:
    """Raise BadInput when the program cannot have been made of the model."""
    if model.config.vocab_size != program["vocab_size"]:
        raise BadInput(
            f"the model has {model.config.vocab_size} tokens, the program {program['vocab_size']}: "
            f"give the --model that it was exported from ({program['model']['name']})"
        )


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


def compare(session: Session, trials: list[Trial]) -> dict[str, Any]:
    """Distances over all trials, and for each prefill and the decodes after it in `steps`."""
    steps, parts = [], []
    for trial in trials:
        batch, size = trial.prompts.shape
        print(f"program: batch {batch}, {size} prompt tokens", flush=True)
        measured = replay(session, trial.prompts, trial.lengths, trial.greedy)
        for kind, at in (("prefill", slice(0, 1)), ("decode", slice(1, None))):
            parts.append(distances(trial.logits[:, at], measured[:, at]))
            steps.append({"kind": kind, "batch": batch, "prompt_tokens": size, **summary(parts[-1])})
    return {**summary(joined(parts)), "steps": steps}


def replay(session: Session, prompts: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The program's logits [B, N + 1, V] after the prompts [B, T] and after each of the tokens [B, N] given next."""
    logits = [session.prefill(prompts, lengths)]
    logits += [session.decode(tokens[:, step, None], lengths + step) for step in range(tokens.shape[1])]
    return torch.cat(logits, dim=1)


def score(session: Session, windows: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """The program's losses [windows, new_tokens + 1] on the last tokens of each window, at its largest batch size."""
    batch, first = max(session.program["batch_sizes"]), windows.shape[1] - new_tokens - 1
    parts = []
    for group in torch.split(windows, batch):
        rows = group[torch.arange(batch) % len(group)]  # the last group may be short: fill it up, drop what was added
        logits = replay(session, rows[:, :first], torch.full((batch,), first), rows[:, first:-1])
        parts.append(losses(logits, rows[:, first:])[: len(group)])
    return torch.cat(parts)


def scores(program_losses: torch.Tensor, reference_losses: torch.Tensor) -> dict[str, Any]:
    """Both perplexities of the same tokens."""
    return {
        "perplexity": perplexity(program_losses),
        "reference_perplexity": perplexity(reference_losses),
        "tokens_scored": program_losses.numel(),
    }


if __name__ == "__main__":
    run(main)
