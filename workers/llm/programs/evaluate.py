r"""Score a compiled program on tasks of lm-evaluation-harness, item by item beside the reference.

    python -m workers.llm.programs.evaluate --model tiny-llama --program inputs/export/config.json \
        --module inputs/compile/model.vmfb --device local-task --reference inputs/reference/reference.json \
        --task-file gsm8k.yaml=tasks/gsm8k.yaml --task-file gsm8k.jsonl=tasks/gsm8k.jsonl \
        --max-tokens 1024 --new-tokens 256

The program's cache must be paged, and it must have what a server calls. Writes outputs/evaluate.json: the report of
`workers.llm.evaluation.paired_scores` for each measure, and the items that changed.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.llm.command_line import BadInput, add_model_arguments, parse_overrides, run, write_json
from workers.llm.models.json_files import read_json_object
from workers.llm.models.model_source import load_model
from workers.llm.programs.evaluate_reference import add_task_arguments, ask_tasks, expect_harness
from workers.llm.programs.invoke import add_program_arguments

if TYPE_CHECKING:
    from workers.llm.evaluation.harness import MeasuredItems

REPORT = Path("outputs/evaluate.json")
MAX_CHANGED = 100  #: items of each measure that are listed


def main() -> None:
    """Score the program."""
    args = parse_arguments()
    expect_harness()
    from workers.llm.evaluation.program_answers import ProgramAnswers
    from workers.llm.serving.compiled_program import CompiledProgram
    from workers.llm.serving.texts import TextCodec

    model = load_model(args.model, args.revision, parse_overrides(args.override))
    answerer = ProgramAnswers(CompiledProgram(args.program, args.module, args.device), TextCodec(model))
    measured, cut = ask_tasks(args, model, answerer)
    reference = read_json_object(args.reference)["scores"]
    scores = [describe(each, of_reference(each, reference)) for each in measured]
    write_json(REPORT, {"scores": scores, "cut": cut})
    for score in scores:
        print({name: value for name, value in score.items() if name != "changed"}, flush=True)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.evaluate", description=__doc__.split("\n")[0])
    add_model_arguments(parser)
    add_program_arguments(parser)
    add_task_arguments(parser)
    parser.add_argument("--reference", type=Path, required=True, help="reference.json of the same tasks")
    return parser.parse_args()


def of_reference(measured: "MeasuredItems", scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the same measure says of the reference's answers. Raises BadInput where it has other items."""
    same = [score for score in scores if (score["task"], score["measure"]) == (measured.task, measured.measure)]
    if not same or len(same[0]["values"]) != len(measured.values):
        raise BadInput(f"--reference: it has no {measured.name} of the same {len(measured.values)} items")
    return same[0]


def describe(measured: "MeasuredItems", reference: dict[str, Any]) -> dict[str, Any]:
    """Return the program's score beside the reference's, and the items that the measure says something else of."""
    from workers.llm.evaluation.paired_scores import compare

    values = [_plain(value) for value in measured.values]
    expected = [_plain(value) for value in reference["values"]]
    changed = [index for index, (old, new) in enumerate(zip(expected, values, strict=True)) if old != new]
    return {
        "task": measured.task,
        "measure": measured.measure,
        "name": measured.name,
        "is_lower_better": measured.is_lower_better,
        **compare(measured.aggregate, expected, values, is_lower_better=measured.is_lower_better),
        "changed_items": len(changed),
        "changed": [
            {
                "item": index,
                "value": values[index],
                "reference": expected[index],
                "answer": measured.answers[index],
                "reference_answer": reference["answers"][index],
            }
            for index in changed[:MAX_CHANGED]
        ],
    }


def _plain(value: Any) -> Any:
    """Return a value as it is after a way through JSON, with tuples, which some scores are made of."""
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    run(main)
