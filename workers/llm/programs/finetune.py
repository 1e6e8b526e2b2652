"""Fine-tune a model on a text or on examples, and write the result as a checkpoint.

    python -m workers.llm.programs.finetune --model tiny-llama --method lora --data text.txt --steps 100 ...

Writes the checkpoint, an adapter's own weights and finetune.json, with the losses and what it took, to outputs/.
"""

import gc
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from workers.llm.command_line import peak_rss_bytes, run, write_json
from workers.llm.finetuning.checkpoint import OUTPUTS, save_adapter, save_checkpoint
from workers.llm.finetuning.request import FinetuneRequest, read_request
from workers.llm.finetuning.sequences import Sequences, read_sequences
from workers.llm.finetuning.training import perplexity, train, with_adapter
from workers.llm.models.model_source import load_model, load_tokenizer
from workers.llm.numerics.reference import load_weights

MAX_SCORED = 256  #: sequences whose perplexity is computed
REPORT = OUTPUTS / "finetune.json"


def main() -> None:
    """Fine-tune the model of the command line."""
    request = read_request()
    OUTPUTS.mkdir(exist_ok=True)
    trained, texts = read_texts(request)
    set_seed(request.seed)
    model = load_weights(request.model, dtype=torch.float32)
    before = score(model, texts, request)
    started = time.monotonic()
    is_full = request.method == "full"
    tuned = model if is_full else with_adapter(model, request)
    parameters = sum(parameter.numel() for parameter in tuned.parameters() if parameter.requires_grad)
    progress = train(tuned, trained, request)
    took_s = time.monotonic() - started
    if not is_full:
        save_adapter(tuned, Path("adapter"))
        tuned = tuned.merge_and_unload(safe_merge=True)
    save_checkpoint(tuned, request.model)
    del model, tuned
    gc.collect()
    after = score(load_weights(load_model(f"./{OUTPUTS}", None, {}), dtype=torch.float32), texts, request)
    tokens = len(progress.losses) * request.batch * request.sequence_tokens
    report: dict[str, Any] = {
        "method": request.method,
        "train_s": took_s,
        "step_s": progress.step_s,
        "losses": progress.losses,
        "tokens_per_s": tokens / took_s,
        "trained_parameters": parameters,
        "peak_rss_bytes": peak_rss_bytes(),
        "peak_device_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        "sequences": len(trained.tokens),
        "perplexity": {name: {"before": before[name], "after": after[name]} for name in texts},
        "warnings": warnings(trained, request),
    }
    shutil.rmtree("trainer", ignore_errors=True)
    write_json(REPORT, report)


def read_texts(request: FinetuneRequest) -> tuple[Sequences, dict[str, Sequences]]:
    """Return the sequences to train on, and those to score: held out of the same text, and of another one."""
    tokenizer, size = load_tokenizer(request.model), request.sequence_tokens
    trained = read_sequences(request.data, tokenizer, size)
    if request.held_out:
        held_out = read_sequences(request.held_out, tokenizer, size)
    else:
        trained, held_out = trained.split()
    other = read_sequences(request.other_text, tokenizer, size)
    return trained, {"held_out": held_out, "other": other}


def score(model: Any, texts: dict[str, Sequences], request: FinetuneRequest) -> dict[str, float]:
    """Return the perplexity of each text, of sequences that are spread evenly over it."""
    model = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    chosen = {name: text.tokens[:: -(-len(text.tokens) // MAX_SCORED)] for name, text in texts.items()}
    return {name: perplexity(model, Sequences(tokens), request.batch) for name, tokens in chosen.items()}


def warnings(trained: Sequences, request: FinetuneRequest) -> list[str]:
    """Return what a reader of the result should know."""
    if not trained.cut:
        return []
    return [f"{trained.cut} examples were cut to sequence_tokens, {request.sequence_tokens}"]


if __name__ == "__main__":
    run(main)
