"""Trains a model on sequences of tokens: all of its weights, or an adapter that is merged into them."""

from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from transformers import PrinterCallback, Trainer, TrainingArguments

from workers.llm.command_line import EXIT_FAILED, BadInput, ProgramFailed
from workers.llm.finetuning.progress import Progress
from workers.llm.finetuning.request import FinetuneRequest
from workers.llm.finetuning.sequences import Sequences

IGNORED = -100  #: the label of padding, as torch's cross_entropy ignores it


def with_adapter(model: Any, request: FinetuneRequest) -> Any:
    """Return the model with an adapter that alone is trained. Raises BadInput for modules that it does not have."""
    config = LoraConfig(
        r=request.rank,
        lora_alpha=request.alpha,
        target_modules=list(request.modules) or "all-linear",
        use_dora=request.method == "dora",
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, config)
    except ValueError as problem:
        raise BadInput(f"finetune.modules: {problem}") from None


def train(model: Any, sequences: Sequences, request: FinetuneRequest) -> Progress:
    """Train a model in place; return the loss and the time of each step.

    Raises ProgramFailed when the loss diverges or the device's memory is not enough.
    """
    transformers.utils.logging.disable_progress_bar()
    if request.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # the base of an adapter has no gradients
    progress = Progress()
    trainer = Trainer(
        model=model,
        args=training_arguments(request),
        train_dataset=[{"input_ids": tokens} for tokens in sequences.tokens],
        data_collator=pad,
        callbacks=[progress],
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train()
    except torch.OutOfMemoryError as problem:
        advice = "lower batch or sequence_tokens, or set gradient_checkpointing"
        raise ProgramFailed(f"the device's memory is not enough: {advice} ({problem})", EXIT_FAILED) from None
    return progress


def training_arguments(request: FinetuneRequest) -> TrainingArguments:
    """Return the settings of transformers' Trainer."""
    steps = {"max_steps": request.steps} if request.steps else {"num_train_epochs": request.epochs}
    return TrainingArguments(
        output_dir="trainer",
        per_device_train_batch_size=request.batch,
        learning_rate=request.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=request.warmup,  # below 1, a share of all steps
        seed=request.seed,
        bf16=request.precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **steps,
    )


def pad(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Return a batch [rows, tokens], padded on the right; padding is neither seen nor predicted."""
    tokens = [torch.tensor(row["input_ids"]) for row in rows]
    visible = pad_sequence([torch.ones_like(row) for row in tokens], batch_first=True)
    ids = pad_sequence(tokens, batch_first=True)
    return {"input_ids": ids, "attention_mask": visible, "labels": ids.masked_fill(visible == 0, IGNORED)}


@torch.inference_mode()
def perplexity(model: Any, sequences: Sequences, batch: int) -> float:
    """Return the exponential of the mean loss of all tokens but the first of each sequence."""
    total, count = 0.0, 0
    for start in range(0, len(sequences.tokens), batch):
        rows = pad([{"input_ids": tokens} for tokens in sequences.tokens[start : start + batch]])
        rows = {name: values.to(model.device) for name, values in rows.items()}
        predicted = int((rows["labels"][:, 1:] != IGNORED).sum())
        total += float(model(**rows, use_cache=False).loss) * predicted
        count += predicted
    return float(torch.tensor(total / count, dtype=torch.float64).exp())
