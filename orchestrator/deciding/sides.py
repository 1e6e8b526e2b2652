"""The two sides of a comparison: read from the database, compared, and told of in rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from db import loose_scan
from db.engine import Database
from db.filters import PATTERN_SIGNS
from db.runs import Chosen, Run, runs
from jobs.errors import NothingToDo
from jobs.metrics import METRICS
from orchestrator.deciding.comparing import Compared, compare
from orchestrator.deciding.noise import Noises, learned
from orchestrator.output import count, quantity
from orchestrator.showing.workloads import workload_in

HISTORY = 2000  #: measurements that tell how runs of the same scatter
FREEDOM_THAT_TELLS = 14.0  #: runs beyond the first of each side: so many tell of their noise themselves

COLUMNS = ("variant", "target", "metric", "workload", "on", "A", "B", "B/A", "interval", "runs", "B is", "")
RIGHT = ("A", "B", "B/A", "runs")
CSV_COLUMNS = (
    "old_variant", "new_variant", "target", "metric", "unit", "batch", "prompt_tokens", "new_tokens", "places", "old",
    "new", "old_runs", "new_runs", "ratio", "low", "high", "verdict", "more_runs", "why",
)  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One side: what it was called, and its runs."""

    text: str
    runs: list[Run]


def read(database: Database, text: str, chosen: Chosen) -> Side:
    """The runs that a selector stands for; raises NothingToDo where there are none."""
    found = runs(database, chosen)
    if found:
        return Side(text, found)
    if not chosen.disturbed and (disturbed := len(runs(database, replace(chosen, disturbed=True)))):
        raise NothingToDo(
            f"something else disturbed {count(disturbed, 'measurement')} of {text}, and there is no other: "
            "`haloctl results --json` says what it was; --disturbed compares them all the same"
        )
    what, meant = ", ".join(chosen.metrics), _meant(database, chosen)
    raise NothingToDo(f"{text} has no measurements of {what}: {meant or '`haloctl results` shows what was measured'}")


def _meant(database: Database, chosen: Chosen) -> str:
    """Which variants are called nearly so, where none is called so."""
    if chosen.variant is None or PATTERN_SIGNS & set(chosen.variant):
        return ""
    with database.reading() as connection:
        names = loose_scan.variants(connection)
    close = [] if chosen.variant in names else get_close_matches(chosen.variant, names)
    return f"no variant is called so; did you mean {' or '.join(close)}?" if close else ""


def history(database: Database, sides: Sequence[Side], *, disturbed: bool = False) -> list[Run]:
    """The newest runs of the sides' variants."""
    own = [run for side in sides for run in side.runs]
    names, metrics = (tuple(sorted(values)) for values in ({run.variant for run in own}, {run.metric for run in own}))
    return runs(database, Chosen(metrics, variants=names, disturbed=disturbed), HISTORY)


def compared(
    database: Database, sides: Sequence[Side], margin_percent: float, *, each_device: bool, disturbed: bool = False
) -> list[Compared]:
    """Cells in the order of variants, metrics and workloads; raises NothingToDo where nothing pairs."""
    old, new = sides
    found = compare(old.runs, new.runs, Noises(), margin_percent, each_device=each_device)
    if any(cell.estimate and cell.estimate.freedom < FREEDOM_THAT_TELLS for cell in found):
        own = {run.attempt for side in sides for run in side.runs}
        noises = learned(run for run in history(database, sides, disturbed=disturbed) if run.attempt not in own)
        found = compare(old.runs, new.runs, noises, margin_percent, each_device=each_device)
    if not found:
        raise NothingToDo(
            f"{old.text} and {new.text} have no metric and workload in common: A measured {in_words(old.runs)}; "
            f"B measured {in_words(new.runs)}"
        )
    order = {name: number for number, name in enumerate(METRICS)}
    return sorted(
        found, key=lambda cell: (cell.old_variant, cell.target, order[cell.metric], cell.workload, cell.places)
    )


def in_words(found: Sequence[Run]) -> str:
    """What runs are of, in a few words."""
    benches = sorted({(run.variant, run.metric, run.workload) for run in found})
    shown = [f"{variant} {metric} {told(workload)}".strip() for variant, metric, workload in benches[:2]]
    return ", ".join(shown) + (f" and {count(len(benches) - 2, 'other')}" if len(benches) > 2 else "")


def told(workload: Sequence[tuple[str, int]]) -> str:
    """`batch 4, prompt 2048`."""
    return ", ".join(f"{name.removesuffix('_tokens')} {value}" for name, value in workload)


def as_row(cell: Compared) -> dict[str, Any]:
    """For programs."""
    sizes = dict(cell.workload)
    interval = cell.interval
    return {
        "old_variant": cell.old_variant,
        "new_variant": cell.new_variant,
        "target": cell.target,
        "metric": cell.metric,
        "unit": cell.unit,
        **{name: sizes.get(name) for name in ("batch", "prompt_tokens", "new_tokens")},
        "places": list(cell.places),
        "old": cell.old,
        "new": cell.new,
        "old_runs": cell.old_runs,
        "new_runs": cell.new_runs,
        "ratio": cell.ratio,
        "low": interval and interval[0],
        "high": interval and interval[1],
        "noise": cell.estimate and cell.estimate.sigma,
        "verdict": cell.verdict.value,
        "more_runs": cell.more,
        "why": cell.why,
    }


def line(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a table for people."""
    names = dict.fromkeys((row["old_variant"], row["new_variant"]))
    places = row["places"]
    return (
        " / ".join(names),
        row["target"],
        row["metric"],
        workload_in(row),
        places[0] if len(places) == 1 else f"{len(places)} devices" if places else "",
        quantity(row["old"], row["unit"]),
        quantity(row["new"], row["unit"]),
        "" if row["ratio"] is None else f"{row['ratio']:.3f}",
        "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
        f"{row['old_runs']}, {row['new_runs']}",
        row["verdict"],
        row["why"],
    )


def filtered(common: Chosen, **filters: str | bool | None) -> Chosen:
    """What both sides have in common."""
    return replace(common, **{name: value for name, value in filters.items() if value})  # type: ignore[arg-type]
