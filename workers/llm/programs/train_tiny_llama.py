"""Train the tiny llama that ships with haloctl, from a free text, on one CPU thread, in a few minutes.

The shipped model was trained on the King James Bible, whose copyright has expired, as Debian packages it:

    sudo apt-get install bible-kjv
    bible -f 'gen1:1-rev22:21' < /dev/null | cut -d' ' -f2- > kjv.txt
    python -m workers.llm.programs.train_tiny_llama --text kjv.txt --output jobs/recipes/models/tiny-llama

The same text, seed, steps and library versions on the same kind of CPU give the same model.
"""

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = (
    "1"  # before torch: on a shared machine more threads were far slower, and sums would differ
)

import tokenizers
import torch
import transformers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
SPECIAL_TOKENS = ["<pad>", "<s>", "</s>"]  # their place in the list is their id
PAD, BOS, EOS = range(3)
WINDOW = 256  #: tokens in a training sequence, <s> included: more than any shipped recipe's prompt and new tokens
BLOCK_LINES = 64
CALIBRATION_LINES = 12  #: of a block, at its start
HELD_OUT_EVERY = 48  #: one block of lines in so many is held out, so that the held-out text comes from all books

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,  # GQA, and 8 ranks still get one head each
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,  # the plan splits lm_head, but not an embedding tied to it
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a training run, besides the text."""

    steps: int
    batch: int
    peak_learning_rate: float
    warmup_steps: int
    weight_decay: float
    seed: int


def main() -> None:
    """Train, write the model folder, and print how good the model is."""
    args = parse_arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    settings = TrainingSettings(args.steps, args.batch, args.learning_rate, args.steps // 20 + 1, 0.1, args.seed)
    whole = args.text.read_text(encoding="utf-8")
    text, held_out = split(whole)
    tokenizer = train_tokenizer(text)
    tokens, held_out_tokens = encode(tokenizer, text), encode(tokenizer, held_out)
    print(f"{len(tokens)} tokens to train on, {len(held_out_tokens)} held out", flush=True)

    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    untrained = perplexity(model, held_out_tokens)
    started = time.monotonic()
    train(model, tokens, settings)
    report = {
        "perplexity": perplexity(model, held_out_tokens),
        "untrained_perplexity": untrained,
        "unigram_perplexity": unigram_perplexity(tokens, held_out_tokens),
        "held_out_tokens": len(held_out_tokens),
        "training_tokens": len(tokens),
        "parameters": sum(p.numel() for p in model.parameters()),
        "training_s": round(time.monotonic() - started, 1),
        "settings": asdict(settings),
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, tokenizers)},
    }
    write_model(args.output, model, tokenizer, held_out, report)
    (args.output / "calibration.txt").write_text(calibration(whole), encoding="utf-8")
    print(json.dumps(report, indent=2))


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.train_tiny_llama", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text, a verse or paragraph a line")
    parser.add_argument("--output", type=Path, required=True, help="the model folder to write")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--learning-rate", type=float, default=4e-3, help="at its peak")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not args.text.is_file():
        parser.error(f"the text {args.text} does not exist: this program's docstring says how to get one")
    return args


def split(text: str) -> tuple[str, str]:
    """Split a text into the part to train on and the held-out part, which is blocks of lines from all over it."""
    lines = text.splitlines(keepends=True)
    blocks = ["".join(lines[i : i + BLOCK_LINES]) for i in range(0, len(lines), BLOCK_LINES)]
    is_held_out = [i % HELD_OUT_EVERY == HELD_OUT_EVERY // 2 for i in range(len(blocks))]
    train_text = "".join(b for b, out in zip(blocks, is_held_out, strict=True) if not out)
    held_out = "".join(b for b, out in zip(blocks, is_held_out, strict=True) if out)
    if len(held_out) < 10 * WINDOW:
        sys.exit(f"error: the text has only {len(lines)} lines: {BLOCK_LINES * HELD_OUT_EVERY} or more are needed")
    return train_text, held_out


def calibration(text: str) -> str:
    """Return the calibration text of quantizers: the first lines of some blocks, none of them held out."""
    lines = text.splitlines(keepends=True)
    chosen = (
        i for i in range(len(lines) // BLOCK_LINES + 1) if i % 16 == 8 and i % HELD_OUT_EVERY != HELD_OUT_EVERY // 2
    )
    return "".join("".join(lines[i * BLOCK_LINES : i * BLOCK_LINES + CALIBRATION_LINES]) for i in chosen)


def train_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which can encode any text and puts <s> before it."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(text.splitlines(keepends=True), trainer)
    bpe.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=SHAPE["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> torch.Tensor:
    """Return all tokens of a text, without <s>."""
    return torch.tensor(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def train(model: LlamaForCausalLM, tokens: torch.Tensor, settings: TrainingSettings) -> None:
    """Train with AdamW on random windows, with a warm-up and a cosine decay to a hundredth of the peak rate."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.peak_learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, settings))
    draw = torch.Generator().manual_seed(settings.seed)
    model.train()
    for step in range(settings.steps):
        starts = torch.randint(len(tokens) - WINDOW, (settings.batch,), generator=draw)
        loss = next_token_loss(model, with_bos(tokens[starts[:, None] + torch.arange(WINDOW - 1)])).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def learning_rate_factor(step: int, settings: TrainingSettings) -> float:
    """Return the learning rate at a step as a fraction of its peak."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress))


def with_bos(windows: torch.Tensor) -> torch.Tensor:
    """Return the windows [B, N] with <s> before each."""
    return torch.cat([torch.full((len(windows), 1), BOS), windows], dim=1)


def next_token_loss(model: LlamaForCausalLM, windows: torch.Tensor) -> torch.Tensor:
    """Return the negative log likelihood [B * (N - 1)] of all tokens but the first in the windows [B, N]."""
    logits = model(windows[:, :-1]).logits
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none")


@torch.no_grad()
def perplexity(model: LlamaForCausalLM, tokens: torch.Tensor) -> float:
    """Return the model's perplexity per token on a text cut into windows, each after <s>."""
    model.eval()
    windows = tokens[: len(tokens) // (WINDOW - 1) * (WINDOW - 1)].view(-1, WINDOW - 1)
    losses = torch.cat([next_token_loss(model, with_bos(part)) for part in torch.split(windows, 16)])
    return round(math.exp(losses.mean().item()), 3)


def unigram_perplexity(tokens: torch.Tensor, held_out: torch.Tensor) -> float:
    """Return the perplexity per token of add-one smoothed frequencies, which a model without context reaches."""
    counts = torch.bincount(tokens, minlength=VOCABULARY).double() + 1
    return round(math.exp(-(counts / counts.sum()).log()[held_out].mean().item()), 3)


def write_model(
    folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, held_out: str, report: dict[str, object]
) -> None:
    """Write the model in Hugging Face layout, the held-out text and the report."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable for its owner only
    tokenizer.save_pretrained(folder)
    config_file = folder / "tokenizer_config.json"
    config = json.loads(config_file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config_file.write_text(json.dumps(config, indent=2) + "\n")  # TokenizersBackend is unknown to transformers 4
    (folder / "heldout.txt").write_text(held_out, encoding="utf-8")
    (folder / "training.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
