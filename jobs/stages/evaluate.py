"""Evaluate: what a compiled program scores on tasks of lm-evaluation-harness, beside the reference on the same items.

A score alone says little: that of 1,000 questions has a standard error of 1.5 points. The difference of two models that
answer most of them alike has a far smaller one, because the same items count on both sides.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import NormalDist
from typing import Any

from jobs.number_format import format_number
from jobs.stages import reference
from jobs.stages.base import (
    INPUTS,
    Cell,
    Medians,
    Settings,
    Stage,
    device_count,
    device_resources,
    memory_for,
    model_settings,
    parallelism_settings,
    read_report,
    wrong_numbers,
)
from jobs.stages.invoke import PROGRAM_FLAGS
from jobs.state import Failure
from jobs.targets import device_flags
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain

FALSE_ALARMS = 0.01  #: of all scores of a task together, where the program is as good as allowed


def settings(cell: Cell) -> dict[str, Any]:
    """Return what is asked, where, and how much worse the answers may be."""
    return {
        "model": model_settings(cell),
        "target": cell.variant.target,
        **parallelism_settings(cell.variant),
        **reference.task_settings(cell),
        "max_drop_percent": cell.spec.evaluate.max_drop_percent,
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one program, which asks the compiled one and compares its answers with the reference's."""
    devices = device_flags(settings["target"], device_count(settings))
    scores = f"--reference={INPUTS}/reference/{reference.SCORES}"
    return [reference.evaluation("evaluate", settings, *PROGRAM_FLAGS, *devices, scores)]


def resources(cell: Cell) -> Resources:
    """Return the variant's devices."""
    return device_resources(cell, memory_bytes=memory_for(cell, 4))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return each score with its standard error, and a failure if one is certainly worse than allowed."""
    report = read_report(folder, "evaluate.json")
    scores = sorted(report["scores"], key=itemgetter("is_lower_better"))  # the first one is what a cell shows
    allowed = settings["max_drop_percent"]
    measurements = tuple(measured for score in scores for measured in _measurements(score))
    warnings = (*reference.cut_warnings(report["cut"], settings), *_undecided(scores, allowed))
    return Outcome(measurements, warnings, gate(scores, allowed))


def _measurements(score: Mapping[str, Any]) -> Iterator[Measurement]:
    keys = ("items", "changed_items", "reference", "reference_stderr")
    context = {"evaluation": score["name"], **{key: score[key] for key in keys}}
    measured = {
        "eval_loss" if score["is_lower_better"] else "eval_score": score["value"],
        "eval_stderr": score["value_stderr"],
        "eval_drop": score["drop"],
        "eval_drop_stderr": score["drop_stderr"],
    }
    for metric, value in measured.items():
        if value is not None and math.isfinite(value):
            yield Measurement(metric, (float(value),), context)


def gate(scores: Sequence[Mapping[str, Any]], max_drop_percent: float) -> Failure | None:
    """Return the failure that names each score whose drop is certainly larger than allowed; None if there is none."""
    worse = [
        f"{_sentence(score)}, at most {_allowed(score, max_drop_percent):.3g} allowed"
        for score in scores
        if not _least_drop(score, len(scores)) <= _allowed(score, max_drop_percent)
    ]
    return wrong_numbers("; ".join(worse)) if worse else None


def _undecided(scores: Sequence[Mapping[str, Any]], max_drop_percent: float) -> Iterator[str]:
    for score in scores:
        least, allowed = _least_drop(score, len(scores)), _allowed(score, max_drop_percent)
        most = 2 * score["drop"] - least
        if least <= allowed < most:
            yield (
                f"{score['name']}: {score['items']} items can't tell whether it is worse by more than {allowed:.3g}, "
                f"which is allowed: by {score['drop']:.3g}, at most {most:.3g}"
            )


def _least_drop(score: Mapping[str, Any], scores: int) -> float:
    """Return the lower bound of a drop, one-sided, when as many scores are looked at."""
    certainty = NormalDist().inv_cdf(1 - FALSE_ALARMS / scores)
    return float(score["drop"] - certainty * (score["drop_stderr"] or 0.0))


def _allowed(score: Mapping[str, Any], max_drop_percent: float) -> float:
    return float(abs(score["reference"]) * max_drop_percent / 100)


def _sentence(score: Mapping[str, Any]) -> str:
    """`gsm8k exact_match 0.41, the reference's 0.47: worse by 0.06 +- 0.012 on 1319 items`."""
    error = score["drop_stderr"]
    items = f"{score['items']} items, {score['changed_items']} of which changed"
    return (
        f"{score['name']} {score['value']:.4g}, the reference's {score['reference']:.4g}: worse by {score['drop']:.3g}"
        f"{'' if error is None else f' ± {error:.2g}'} on {items}"
    )


def figure(medians: Medians, target: str) -> str:
    """Return the first score with its drop."""
    score, drop = medians.get("eval_score", medians.get("eval_loss")), medians.get("eval_drop")
    return "" if score is None or drop is None else f"score {format_number(score)} ({0.0 - drop:+.2g})"


EVALUATE = Stage(
    name="evaluate",
    title="evaluation",
    needs=("export", "compile", "reference"),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={"evaluate.json": "report"},
    is_default=False,
    needs_weights=True,
    applies_to=reference.applies_to,
    own_toolchain=reference.own_toolchain,
    adds_toolchain=True,
    figure=figure,
)
