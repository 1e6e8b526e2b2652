"""Running lm-evaluation-harness: from a folder of tasks and a model to what each measure says of each item."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from workers.llm.command_line import BadInput, ProgramFailed
from workers.llm.evaluation.language_model import AnsweringModel
from workers.llm.evaluation.paired_scores import Aggregate

MAX_ANSWER = 400  #: characters of an answer that is kept
SEED = 1234  #: of the examples that are shown before a question: lm-evaluation-harness's own


@dataclass(frozen=True)
class EvaluationOptions:
    """How much of a folder's tasks is asked, and how."""

    names: Sequence[str] = ()  #: of tasks, groups or tags; empty: all tasks
    few_shot: int | None = None  #: examples before each question; None: as the tasks say
    items: int | None = None  #: of each task; None: all
    is_chat: bool = False  #: questions are turns of a conversation, in the model's chat template


@dataclass(frozen=True)
class MeasuredItems:
    """What one measure says of each item of a task."""

    task: str
    measure: str  #: with the filter of answers that it is of: `exact_match,strict-match`
    values: list[Any]
    answers: list[str]
    is_lower_better: bool
    aggregate: Aggregate

    @property
    def name(self) -> str:
        """The name of the score in results."""
        return f"{self.task} {self.measure.removesuffix(',none')}"


def ask(model: AnsweringModel, folder: Path, options: EvaluationOptions) -> list[MeasuredItems]:
    """Return what each measure of each task says. Raises BadInput where a task can't be asked."""
    _expect_plain_templates()
    loaded = _load(folder, options)
    try:
        results = evaluate(
            model,
            loaded,
            limit=options.items,
            bootstrap_iters=0,  # the standard errors are computed with those of differences
            apply_chat_template=options.is_chat,
            fewshot_as_multiturn=options.is_chat,
        )
    except (BadInput, ProgramFailed):
        raise
    except Exception as problem:  # of any type: a template that names what an item does not have
        traceback.print_exc()
        raise BadInput(f"a task can't be asked: {type(problem).__name__}: {problem}") from None
    return [
        measured
        for name, samples in sorted(results["samples"].items())
        for measured in _measured(name, loaded["tasks"][name], samples)
    ]


def _expect_plain_templates() -> None:
    """Have templates of tasks run in Jinja's sandbox: by themselves they could reach all of Python."""
    plain = lm_eval.utils.env
    if not isinstance(plain, ImmutableSandboxedEnvironment):
        sandboxed = ImmutableSandboxedEnvironment(undefined=plain.undefined, keep_trailing_newline=True)
        sandboxed.filters.update(plain.filters)
        lm_eval.utils.env = sandboxed


def _load(folder: Path, options: EvaluationOptions) -> dict[str, Any]:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    if not manager.all_subtasks:
        raise BadInput("the folder has no tasks: a file of lm-evaluation-harness, such as gsm8k.yaml, makes one")
    if unknown := [name for name in options.names if name not in manager.all_tasks]:
        raise BadInput(f"the folder has no task {', '.join(unknown)}, only {', '.join(manager.all_tasks)}")
    try:
        loaded: dict[str, Any] = manager.load(list(options.names) or manager.all_subtasks)
    except Exception as problem:  # of any type: a config, or data that datasets can't read
        raise BadInput(f"a task can't be loaded: {type(problem).__name__}: {problem}") from problem
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None or options.few_shot is not None:
            task.set_config(key="num_fewshot", value=options.few_shot or 0)
        task.set_fewshot_seed(seed=SEED)
    return loaded


def _measured(name: str, task: Any, samples: Sequence[dict[str, Any]]) -> list[MeasuredItems]:
    by_measure: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
        for metric in sample["metrics"]:
            by_measure.setdefault((metric, sample["filter"]), []).append(sample)
    return [
        MeasuredItems(
            name,
            f"{metric},{choice}",
            [sample[metric] for sample in chosen],
            [_answer(sample["filtered_resps"]) for sample in chosen],
            not task.higher_is_better().get(metric, True),
            task.aggregation()[metric],
        )
        for (metric, choice), chosen in by_measure.items()
    ]


def _answer(responses: Sequence[Any]) -> str:
    """Return an answer as people read it: its text, or the number of the likeliest choice, from 1."""
    first = responses[0]
    if isinstance(first, str):
        return first[:MAX_ANSWER]
    if isinstance(first, tuple) and len(responses) > 1:
        likelihoods = [logprob for logprob, _ in responses]
        return f"choice {1 + likelihoods.index(max(likelihoods))}"
    return str(first)[:MAX_ANSWER]
