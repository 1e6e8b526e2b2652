"""The jobs of these tests. All ask of the model what `EVERYTHING` or `ONE_EXPORT` asks: it is looked at twice."""

from typing import Any

NEW_TOKENS, PROMPT_TOKENS, REPETITIONS = 8, 32, 3

#: Every stage, at tensor parallelism 1 and 2, on a target that is here and on one that is not.
EVERYTHING: dict[str, Any] = {
    "name": "everything",
    "model": "tiny-llama",
    "variants": {"precision": "f16", "tp": [1, 2], "target": ["cpu", "mi300x"]},
    "workload": {"batch": 1, "prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS},
    "numerics": {"windows": 4},
    "benchmark": {"warmup": 1, "repetitions": REPETITIONS, "generations": 0},
    "timeout": "5m",
}

#: A few seconds of work in one task.
ONE_EXPORT = {
    **EVERYTHING,
    "name": "one export",
    "variants": {"precision": "f16", "tp": [1, 2], "exclude": [{"tp": 2}]},
    "stages": ["export"],
}

#: Two tasks side by side.
TWO_EXPORTS = {**ONE_EXPORT, "name": "two exports", "variants": {"precision": "f16", "tp": [1, 2]}}

#: Where `EVERYTHING` was done before, this is soon timing, and goes on for hours.
ENDLESS = {
    **EVERYTHING,
    "name": "endless",
    "variants": {"precision": "f16", "tp": [1, 2], "target": "cpu"},
    "stages": ["export", "compile", "benchmark"],
    "benchmark": {"repetitions": 100_000},
    "timeout": "5h",
}
