"""Reports of numerics layer by layer, of one task or of two side by side. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jobs.errors import BadSetting
from orchestrator.tables import TextTable

Report = Mapping[str, Any]  #: layers.json, as workers.llm.programs.locate writes it

COLUMNS = ("module", "rank", "phase")
VALUES = ("error", "drift")


def check_reports(names: Sequence[str], reports: Sequence[Report]) -> None:
    """Raise BadSetting for reports that can't be shown, or not side by side."""
    for name, report in zip(names, reports, strict=True):
        if "problem" in report:
            raise BadSetting(name, f"its layers are not known: {report['problem']}")
    layers = [[layer["module"] for layer in report["layers"]] for report in reports]
    if any(other != layers[0] for other in layers):
        raise BadSetting(" and ".join(names), "have other layers: compare two variants of one model")


def differing_conditions(reports: Sequence[Report]) -> str:
    """Return what was compared with different inputs; empty where all had the same."""
    keys = [key for key in ("batch", "prompt_tokens") if len({report[key] for report in reports}) > 1]
    return ", ".join(f"{key} {' and '.join(str(report[key]) for report in reports)}" for key in keys)


def rows_of(names: Sequence[str], reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Return a row for each layer and phase, then for each module within a layer that is off.

    The keys of values are `error` and `drift`, numbered from 1 where there are several reports.
    """
    by_key: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, report in enumerate(reports, 1):
        suffix = f"_{number}" if len(reports) > 1 else ""
        for key, values in _values(report):
            row = by_key.setdefault(key, dict(zip(COLUMNS, key, strict=True)))
            row.update({f"{name}{suffix}": values.get(name) for name in VALUES})
    columns = csv_columns(names)
    return [{name: row.get(name) for name in columns} for row in by_key.values()]


def csv_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of `rows_of`."""
    numbers = [f"_{number}" for number in range(1, len(names) + 1)] if len(names) > 1 else [""]
    return (*COLUMNS, *(f"{value}{number}" for number in numbers for value in VALUES))


def _values(report: Report) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    for part in (*report["layers"], *report["modules"]):
        for phase in ("prefill", "decode"):
            if phase in part:
                yield (part["module"], part.get("rank"), phase), part[phase]


def build_table(names: Sequence[str], reports: Sequence[Report]) -> TextTable:
    """Return a table for people, with a note for what is off first."""
    rows = rows_of(names, reports)
    values = [name for name in csv_columns(names) if name not in COLUMNS]
    lines = [
        (
            row["module"] if row["rank"] is None else f"{row['module']}, rank {row['rank']}",
            row["phase"],
            *(_number(row, name) for name in values),
        )
        for row in rows
    ]
    numbers = [f"{number}: " for number in range(1, len(names) + 1)] if len(names) > 1 else [""]
    notes = [number + _note(name, report) for number, name, report in zip(numbers, names, reports, strict=True)]
    if differing := differing_conditions(reports):
        notes.append(f"they were given different inputs: {differing}")
    return TextTable(("module", "", *values), lines, values, notes)


def _number(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    return "" if value is None else f"{value:.2g}"


def _note(name: str, report: Report) -> str:
    limit = f"{report['precision']}, at most {report['limit']:g}"
    first = report["module"] or report["first"]
    return f"{name} ({limit}): {'first off in ' + first['module'] if first else 'no layer is off'}"
