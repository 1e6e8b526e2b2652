"""Two programs of one model side by side, dispatch by dispatch: which is the first that returns something else? Pure.

Compilers and flags form different dispatches, and lay out tensors differently. So a call is paired with the one of the
same name (but for numbers) in the same order, or else with any that returns the same values, in whatever layout. One
that has no pair may be fused with others; only one whose pair returns something else is a finding, and only where the
programs' results differ, too.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from jobs.errors import BadSetting
from orchestrator.tables import TextTable

Report = Mapping[str, Any]  #: dispatches.json, as workers.llm.programs.trace_dispatches writes it
Call = Mapping[str, Any]
Sketch = Mapping[str, Any]

COLUMNS = ("call", "dispatch_1", "dispatch_2", "difference")
NUMBER = re.compile(r"_dispatch_\d+")
PHASES = ("prefill", "decode")


def check_reports(names: Sequence[str], reports: Sequence[Report]) -> None:
    """Raise BadSetting for reports that can't be compared."""
    for name, report in zip(names, reports, strict=True):
        if "problem" in report:
            raise BadSetting(name, f"its dispatches are not known: {report['problem']}")
    if len(reports) != 2:
        raise BadSetting("--dispatches", "compares two programs: name another one")
    for key in ("batch", "prompt_tokens"):
        if reports[0][key] != reports[1][key]:
            raise BadSetting(" and ".join(names), f"were given different inputs: {key} differs")


def rows_of(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Return a row for each call of the first program, with its pair in the second, if it has one.

    `difference` is the largest one of a tensor that both return, relative to it; infinite where only one is finite.
    """
    first, second = (report["calls"] for report in reports)
    limit = limit_of(reports)
    rows = []
    for number, (call, pair) in enumerate(zip(first, paired(first, second), strict=True), 1):
        difference = difference_of(call, pair) if pair else None
        if difference is None or difference > limit:
            same = _same_values(call, second, limit)
            pair, difference = (same, difference_of(call, same)) if same else (pair, difference)
        names = {"dispatch_1": call["dispatch"], "dispatch_2": pair and pair["dispatch"]}
        rows.append({"call": number, **names, "difference": difference})
    return rows


def paired(first: Sequence[Call], second: Sequence[Call]) -> list[Call | None]:
    """Return, for each call of the first program, the one of the second that it is by its name and place."""
    pairs: list[Call | None] = [None] * len(first)
    matcher = SequenceMatcher(None, [*map(_kind, first)], [*map(_kind, second)], autojunk=False)
    for block in matcher.get_matching_blocks():
        pairs[block.a : block.a + block.size] = second[block.b : block.b + block.size]
    return pairs


def _kind(call: Call) -> tuple[str, ...]:
    return (NUMBER.sub("", call["dispatch"]), *(_shape(tensor) for tensor in call["outputs"]))


def _same_values(call: Call, others: Sequence[Call], limit: float) -> Call | None:
    phase = _phase(call)
    for other in others:
        if _phase(other) == phase:
            difference = difference_of(call, other)
            if difference is not None and difference <= limit:
                return other
    return None


def _phase(call: Call) -> str:
    return next((phase for phase in PHASES if call["dispatch"].startswith(phase)), "")


def _shape(tensor: Sketch) -> str:
    """Return a tensor's shape: its element type may be what two programs differ in."""
    return str(tensor["type"]).rpartition("x")[0]


def _elements(tensor: Sketch) -> int:
    return math.prod(int(size) for size in str(tensor["type"]).split("x")[:-1])


def difference_of(old: Call, new: Call) -> float | None:
    """Return the largest difference of what two calls return; None where it is not the same number of values."""
    tensors, others = old["outputs"], new["outputs"]
    if [*map(_elements, tensors)] != [*map(_elements, others)]:
        return None
    return max((tensor_difference(*pair) for pair in zip(tensors, others, strict=True)), default=None)


def tensor_difference(old: Sketch, new: Sketch) -> float:
    """Return the relative distance of two tensors, or that of their moments, which no layout changes, if it is less."""
    if old["sketch"] is None or new["sketch"] is None:
        return 0.0 if old["sketch"] == new["sketch"] else math.inf
    scale = old["rms"]
    distance = math.dist(old["sketch"], new["sketch"]) / math.sqrt(_elements(old))
    moments = max(abs(a - b) for a, b in zip(old["moments"], new["moments"], strict=True))
    difference = min(distance, moments) if _elements(old) > 1 else distance
    return difference / scale if scale else (math.inf if difference else 0.0)


def limit_of(reports: Sequence[Report]) -> float:
    """Return the largest difference that rounding explains: that of the coarser of two precisions."""
    return max(float(report["limit"]) for report in reports)


def build_table(names: Sequence[str], reports: Sequence[Report]) -> TextTable:
    """Return a table for people, with a note that names the first dispatch that differs."""
    rows = rows_of(reports)
    lines = [(str(row["call"]), row["dispatch_1"], row["dispatch_2"] or "", _number(row["difference"])) for row in rows]
    return TextTable(COLUMNS, lines, ("call", "difference"), [*_notes(names, reports, rows)])


def _notes(names: Sequence[str], reports: Sequence[Report], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    limit, (first, second) = limit_of(reports), (report["results"] for report in reports)
    alone = sum(row["dispatch_2"] is None for row in rows)
    if alone:
        yield f"{alone} of {len(rows)} dispatches have no pair: the programs were formed differently"
    results = {phase: tensor_difference(first[phase], second[phase]) for phase in first if phase in second}
    if all(difference <= limit for difference in results.values()):
        yield f"{' and '.join(names)} return the same logits but for {_number(max(results.values()))}"
        return
    logits = f"their logits differ by {_number(max(results.values()))}, at most {limit:g} is rounding"
    part = next((row for row in rows if row["difference"] is not None and row["difference"] > limit), None)
    if part is None:
        yield f"{logits}; no dispatch that both have differs"
        return
    yield f"{logits}; the first dispatch that differs is call {part['call']}, {part['dispatch_1']}: by " + _number(
        part["difference"]
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
