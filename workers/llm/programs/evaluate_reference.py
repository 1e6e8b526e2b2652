r"""Score the reference on tasks of lm-evaluation-harness: the model in torch, eager and in f32.

    python -m workers.llm.programs.evaluate_reference --model tiny-llama --task-file gsm8k.yaml=tasks/gsm8k.yaml \
        --task-file gsm8k.jsonl=tasks/gsm8k.jsonl --max-tokens 1024 --new-tokens 256

Writes outputs/reference.json: what each measure says of each item, and the answers.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.models import SHIPPED_TASKS
from workers.llm.command_line import BadInput, add_model_arguments, parse_overrides, positive_int, run, write_json
from workers.llm.models.model_source import LocalModel, load_model, load_tokenizer

if TYPE_CHECKING:
    from workers.llm.evaluation.answers import Answerer
    from workers.llm.evaluation.harness import MeasuredItems

REPORT = Path("outputs/reference.json")
MEASURED = ("task", "measure", "values", "answers")


def main() -> None:
    """Score the reference."""
    args = parse_arguments()
    expect_harness()
    from workers.llm.evaluation.reference_answers import ReferenceAnswers
    from workers.llm.numerics.reference import load_reference
    from workers.llm.serving.texts import TextCodec

    model = load_model(args.model, args.revision, parse_overrides(args.override))
    answerer = ReferenceAnswers(load_reference(model), TextCodec(model))
    measured, cut = ask_tasks(args, model, answerer)
    scores = [{name: asdict(each)[name] for name in MEASURED} for each in measured]
    write_json(REPORT, {"scores": scores, "cut": cut})


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.evaluate_reference", description=__doc__.split("\n")[0]
    )
    add_model_arguments(parser)
    add_task_arguments(parser)
    return parser.parse_args()


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what is asked."""
    parser.add_argument(
        "--task-file",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="one for each file; by default two small tasks that ship with haloctl",
    )
    parser.add_argument("--task", action="append", default=[], help="a task, group or tag; by default all tasks")
    parser.add_argument("--few-shot", type=int, help="examples before each question; by default the task's own number")
    parser.add_argument("--items", type=positive_int, help="of each task; by default all")
    parser.add_argument("--chat", action="store_true", help="ask in the form of the model's chat template")
    parser.add_argument("--max-tokens", type=positive_int, required=True, help="of a text, its answer included")
    parser.add_argument(
        "--new-tokens", type=positive_int, required=True, help="of an answer, where a task does not say"
    )


def expect_harness() -> None:
    """Raise BadInput where lm-evaluation-harness is not installed."""
    try:
        import lm_eval  # noqa: F401
    except ModuleNotFoundError as problem:
        raise BadInput(
            f"evaluation needs the package {problem.name}, which the toolchain lm-eval has: pip install lm-eval"
        ) from None


def ask_tasks(
    args: argparse.Namespace, model: LocalModel, answerer: "Answerer"
) -> tuple[Sequence["MeasuredItems"], int]:
    """Return what was measured, and how many texts were too long and had their beginning cut."""
    from workers.llm.evaluation.harness import EvaluationOptions, ask
    from workers.llm.evaluation.language_model import AnsweringModel
    from workers.llm.evaluation.task_files import bring

    tokenizer = load_tokenizer(model)
    if tokenizer.eos_token_id is None:
        raise BadInput("this model's tokenizer has no token that ends a text, which evaluation needs")
    if args.chat and not tokenizer.chat_template:
        raise BadInput("--chat: this model has no chat template")
    asked = AnsweringModel(answerer, tokenizer, args.max_tokens, args.new_tokens)
    given = {name: Path(path) for name, _, path in (item.partition("=") for item in args.task_file)}
    files = given or {path.name: path for path in SHIPPED_TASKS.iterdir()}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        bring(files, Path(folder))
        measured = ask(asked, Path(folder), EvaluationOptions(args.task, args.few_shot, args.items, args.chat))
    return measured, asked.cut


if __name__ == "__main__":
    run(main)
