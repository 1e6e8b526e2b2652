"""Fine-tune: train a model on a job's data, and write a checkpoint that all later stages read instead of the base."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.input_files import file_setting, path_of
from jobs.number_format import format_number
from jobs.stages.base import (
    Cell,
    Medians,
    Settings,
    Stage,
    base_model_settings,
    is_finetuned,
    memory_for,
    model_flags,
    program,
    read_report,
)
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import UNTUNED, Axes

if TYPE_CHECKING:  # commands that only read need no pydantic
    from jobs.sections import FinetuneOptions

TOOLCHAIN = "peft"
DEFAULT_EPOCHS = 1.0
#: The keys that both the section and the sets of `variants.finetune` have.
OPTIONS = (
    *("method", "rank", "alpha", "modules", "steps", "epochs", "batch", "sequence_tokens", "learning_rate", "warmup"),
    *("seed", "precision", "gradient_checkpointing"),
)
#: The values of options that neither the section nor the set gives.
DEFAULTS: dict[str, Any] = {
    "method": "lora",
    "batch": 8,
    "sequence_tokens": 512,
    "warmup": 0.03,
    "seed": 0,
    "precision": "f32",
    "gradient_checkpointing": False,
}
ADAPTER_DEFAULTS: dict[str, Any] = {"rank": 16, "modules": []}
ALPHA_PER_RANK = 2
#: As peft's and TRL's examples begin with.
LEARNING_RATES = {"lora": 2e-4, "dora": 2e-4, "full": 2e-5}
#: The model in f32; for the whole model its gradients and AdamW's two moments as well.
BYTES_PER_PARAMETER = {"lora": 8, "dora": 8, "full": 20}
MEASURED = {
    "train_s": "train_s",
    "tokens_per_s": "train_tokens_per_s",
    "trained_parameters": "trained_parameters",
    "peak_rss_bytes": "finetune_peak_bytes",
    "peak_device_bytes": "finetune_device_bytes",
}
#: The metrics of a text's perplexity before and after.
PERPLEXITIES = {
    "held_out": ("base_perplexity", "tuned_perplexity"),
    "other": ("base_other_perplexity", "tuned_other_perplexity"),
}


def applies_to(axes: Axes) -> bool:
    """Return whether a variant is fine-tuned."""
    return axes.finetune != UNTUNED


def options(cell: Cell) -> dict[str, Any]:
    """Return the options of a variant's set: those that it gives, then those of the section, then the defaults."""
    section, named = cell.spec.finetune, cell.spec.variants.finetune[cell.variant.finetune]
    given = _given(named)
    ends = {"steps", "epochs"} if {"steps", "epochs"} & given.keys() else set()
    given = {**{name: value for name, value in _given(section).items() if name not in ends}, **given}
    method = given.get("method", DEFAULTS["method"])
    merged = {**DEFAULTS, "learning_rate": LEARNING_RATES[method], **given}
    if method == "full":
        merged = {key: value for key, value in merged.items() if key not in ("rank", "alpha", "modules")}
    else:
        merged = {**ADAPTER_DEFAULTS, **merged}
        merged.setdefault("alpha", ALPHA_PER_RANK * merged["rank"])
    if "steps" not in merged:
        merged.setdefault("epochs", DEFAULT_EPOCHS)
    return merged


def _given(section: "FinetuneOptions") -> dict[str, Any]:
    return {name: value for name in OPTIONS if (value := getattr(section, name)) is not None}


def settings(cell: Cell) -> dict[str, Any]:
    """Return the base model, the data and the options; variants that differ in nothing else share the result."""
    section = cell.spec.finetune
    return {
        "model": base_model_settings(cell.model),
        "data": file_setting(section.data),
        "held_out": file_setting(section.held_out),
        "target": section.target or cell.variant.target,
        **options(cell),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return the program that trains."""
    names = ("method", "steps", "epochs", "batch", "sequence_tokens", "learning_rate", "warmup", "seed", "precision")
    flags = [f"--{name.replace('_', '-')}={settings[name]}" for name in (*names, "rank", "alpha") if name in settings]
    held_out = [f"--held-out={path_of(settings['held_out'])}"] if settings["held_out"] else []
    modules = ["--modules", *settings["modules"]] if settings.get("modules") else []
    checkpointing = ["--gradient-checkpointing"] if settings["gradient_checkpointing"] else []
    data = f"--data={path_of(settings['data'])}"
    return [program("finetune", *model_flags(settings), data, *held_out, *flags, *checkpointing, *modules)]


def resources(cell: Cell) -> Resources:
    """Return one device, and memory for the model with what training adds to it."""
    method = options(cell)["method"]
    target = cell.spec.finetune.target or cell.variant.target
    return Resources(cpus=1, memory_bytes=memory_for(cell, BYTES_PER_PARAMETER[method]), devices=1, device_kind=target)


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return times, the loss of each step, and perplexities before and after."""
    report = read_report(folder, "finetune.json")
    measurements = [
        *(Measurement(MEASURED[key], (float(report[key]),)) for key in MEASURED if report.get(key) is not None),
        Measurement("train_step_ms", tuple(1000 * seconds for seconds in report["step_s"])),
        Measurement("train_loss", tuple(report["losses"])),
    ]
    for text, metrics in PERPLEXITIES.items():
        values = (report["perplexity"][text][side] for side in ("before", "after"))
        measurements += [Measurement(metric, (value,)) for metric, value in zip(metrics, values, strict=True)]
    return Outcome(tuple(measurements), warnings=tuple(report["warnings"]))


def figure(medians: Medians, target: str) -> str:
    """Return the perplexity of held-out text before and after."""
    before, after = (medians.get(metric) for metric in PERPLEXITIES["held_out"])
    return "" if before is None or after is None else f"ppl {format_number(before)} -> {format_number(after)}"


FINETUNE = Stage(
    name="finetune",
    title="fine-tuned",
    needs=(),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={
        "config.json": "config",
        ".safetensors": "weights",
        ".safetensors.index.json": "config",
        "adapter.tar": "adapter",
        "finetune.json": "report",
        **dict.fromkeys(
            (
                "tokenizer.json",
                "tokenizer_config.json",
                "tokenizer.model",
                "special_tokens_map.json",
                "vocab.json",
                "merges.txt",
                "chat_template.jinja",
            ),
            "tokenizer",
        ),
    },
    needs_weights=True,
    is_portable=True,  # the later stages are compared on the same weights
    applies_to=applies_to,
    is_needed=is_finetuned,
    own_toolchain=lambda settings: TOOLCHAIN,
    figure=figure,
)
