"""Reference: what the model itself scores on tasks of lm-evaluation-harness, in torch, eager and in f32.

It is computed once, for all variants of a model and whatever they run on.
"""

from pathlib import Path
from typing import Any

from jobs.input_files import folder_setting, path_of
from jobs.stages.base import Cell, Settings, Stage, memory_for, model_flags, model_settings, program, read_report
from jobs.task import Command, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import HALOCTL, Axes, KvCache

TOOLCHAIN = "lm-eval"
SCORES = "reference.json"
MAX_CPUS, PARAMETERS_PER_CPU = 16, 1_000_000_000  #: several cores compute a large model
#: The data is local: nothing is to be asked of a hub, nor kept beyond the attempt.
ENVIRONMENT = {
    "HF_DATASETS_CACHE": "datasets",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "TQDM_DISABLE": "1",
}


def settings(cell: Cell) -> dict[str, Any]:
    """Return the model and what it is asked."""
    return {"model": model_settings(cell), **task_settings(cell)}


def task_settings(cell: Cell) -> dict[str, Any]:
    """Return what is asked, and the lengths at which texts are cut."""
    evaluate, workload = cell.spec.evaluate, cell.spec.workload
    return {
        "task_files": folder_setting(evaluate.tasks),
        "names": sorted(evaluate.names),
        "few_shot": evaluate.few_shot,
        "items": evaluate.items,
        "chat": evaluate.chat,
        "max_tokens": workload.cache_tokens,
        "new_tokens": workload.new_tokens,
    }


def applies_to(axes: Axes) -> bool:
    """Return whether a variant's program can be asked: it has what a server calls."""
    return axes.kv_cache is KvCache.PAGED and axes.exporter == HALOCTL


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one program."""
    return [evaluation("evaluate_reference", settings)]


def evaluation(name: str, settings: Settings, *flags: str) -> Command:
    """Return the command of a program that asks a model."""
    options = {"few-shot": settings["few_shot"], "items": settings["items"]}
    command = program(
        name,
        *model_flags(settings),
        *flags,
        *(f"--task-file={file}={path_of(setting)}" for file, setting in settings["task_files"].items()),
        *(f"--task={task}" for task in settings["names"]),
        *(f"--{option}={value}" for option, value in options.items() if value is not None),
        *(["--chat"] if settings["chat"] else []),
        f"--max-tokens={settings['max_tokens']}",
        f"--new-tokens={settings['new_tokens']}",
    )
    return Command(command.argv, ENVIRONMENT)


def own_toolchain(settings: Settings) -> str:
    """Return the toolchain that has lm-evaluation-harness."""
    return TOOLCHAIN


def resources(cell: Cell) -> Resources:
    """Return memory for the model in f32, on the host."""
    cpus = min(MAX_CPUS, max(1, cell.model.parameters // PARAMETERS_PER_CPU))
    return Resources(cpus=cpus, memory_bytes=memory_for(cell, 4))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return nothing but a warning: a program's own task has the scores of both."""
    return Outcome(warnings=cut_warnings(read_report(folder, SCORES)["cut"], settings))


def cut_warnings(cut: int, settings: Settings) -> tuple[str, ...]:
    """Return what to say of texts that did not fit."""
    if not cut:
        return ()
    return (
        f"{cut} texts of the tasks are longer than the {settings['max_tokens']} tokens of the workload and were cut at "
        "their beginning: give more prompt_tokens",
    )


REFERENCE = Stage(
    name="reference",
    title="reference score",
    needs=(),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={SCORES: "scores"},
    is_default=False,
    needs_weights=True,
    applies_to=applies_to,
    is_portable=True,
    own_toolchain=own_toolchain,
)
