"""What a model is fine-tuned with, as the command line of `workers.llm.programs.finetune` says it."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from jobs.models import SHIPPED
from workers.llm.command_line import add_model_arguments, parse_overrides, positive_int
from workers.llm.models.model_source import LocalModel, load_model

METHODS = ("lora", "dora", "full")
OTHER_TEXT = SHIPPED / "tiny-llama" / "heldout.txt"


@dataclass(frozen=True)
class FinetuneRequest:
    """The model, the data, and the settings of the training."""

    model: LocalModel
    data: Path
    held_out: Path | None  #: None: the last of the data's sequences
    other_text: Path  #: a text that is not trained on, which says what is forgotten
    method: str
    rank: int  #: of the matrices that an adapter adds
    alpha: int  #: an adapter's output is scaled by alpha / rank
    modules: tuple[str, ...]  #: names of the linear modules that get an adapter; empty: all but the head
    steps: int | None
    epochs: float | None
    batch: int  #: sequences of a step
    sequence_tokens: int
    learning_rate: float
    warmup: float  #: share of the steps in which the learning rate rises
    seed: int
    precision: str  #: of the computation: "f32" or "bf16"
    gradient_checkpointing: bool


def read_request() -> FinetuneRequest:
    """Read the command line and find the model."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.finetune")
    add_model_arguments(parser)
    parser.add_argument("--data", type=Path, required=True, help="a text, or a .jsonl of texts or conversations")
    parser.add_argument("--held-out", type=Path, help="a file of the same kind; by default the last tenth of the data")
    parser.add_argument("--other-text", type=Path, default=OTHER_TEXT, help="a text that is not trained on")
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--rank", type=positive_int, default=16)
    parser.add_argument("--alpha", type=positive_int, default=32)
    parser.add_argument("--modules", nargs="*", default=[], help="of an adapter; by default all linear ones")
    parser.add_argument("--steps", type=positive_int)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--batch", type=positive_int, required=True)
    parser.add_argument("--sequence-tokens", type=positive_int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--warmup", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--precision", choices=("f32", "bf16"), required=True)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    args = vars(parser.parse_args())
    model = load_model(args.pop("model"), args.pop("revision"), parse_overrides(args.pop("override")))
    return FinetuneRequest(model=model, modules=tuple(args.pop("modules")), **args)
