"""What attempts cost, summed by user, model, stage, node or job. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from db.reads.attempt_costs import AttemptCost
from jobs.errors import BadSetting
from jobs.state import OF_MACHINES, FailureKind
from jobs.targets import TARGETS
from jobs.task import Place
from orchestrator.formatting import format_count, format_duration
from orchestrator.tables import TextTable

#: What costs can be summed by.
GROUPS: dict[str, Callable[[AttemptCost, Place], str]] = {
    "user": lambda cost, place: cost.user,
    "model": lambda cost, place: cost.model,
    "stage": lambda cost, place: cost.stage,
    "node": lambda cost, place: place.node,
    "job": lambda cost, place: cost.job,
}
#: How attempts end: `lost` ones through a machine, `failed` ones through their program.
OUTCOMES = ("succeeded", "failed", "lost", "cancelled", "running")
RESOURCES = ("device_s", "gpu_s", "core_s")
COLUMNS = ("attempts", *RESOURCES, *(f"{outcome}_{name}" for outcome in OUTCOMES for name in ("attempts", *RESOURCES)))


@dataclass
class Total:
    """The sums of one group, by outcome."""

    attempts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    seconds: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, cost: AttemptCost, places: Sequence[Place]) -> None:
        """Count an attempt with those of its places that belong to the group."""
        outcome = outcome_of(cost)
        self.attempts[outcome] += 1
        for place in places:
            gpus = sum(TARGETS[device.kind].torch_device != "cpu" for device in place.devices if device.kind in TARGETS)
            for name, count in zip(RESOURCES, (len(place.devices), gpus, cost.cores), strict=True):
                self.seconds[outcome, name] += count * cost.seconds

    def to_row(self) -> dict[str, Any]:
        """Return the sums, of all outcomes and of each."""
        apart = {
            f"{outcome}_{name}": self.attempts[outcome] if name == "attempts" else self.seconds[outcome, name]
            for outcome in OUTCOMES
            for name in ("attempts", *RESOURCES)
        }
        sums = {name: sum(self.seconds[outcome, name] for outcome in OUTCOMES) for name in RESOURCES}
        return {"attempts": sum(self.attempts.values()), **sums, **apart}


def outcome_of(cost: AttemptCost) -> str:
    """Return how an attempt ended; one whose gate wants another measurement succeeded."""
    if cost.outcome is None:
        return "running"
    if cost.failure_kind in OF_MACHINES:
        return "lost"
    return "succeeded" if cost.failure_kind == FailureKind.INCONCLUSIVE else cost.outcome


def parse_groups(text: str) -> tuple[str, ...]:
    """Parse `user,stage`; raises BadSetting."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in GROUPS:
            raise BadSetting("--by", f"unknown column {name!r}: choose from {', '.join(GROUPS)}")
    return names


def sum_costs(costs: Iterable[AttemptCost], groups: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each group, those with most device seconds first."""
    totals: dict[tuple[str, ...], Total] = defaultdict(Total)
    for cost in costs:
        for key, places in _places_by_group(cost, groups).items():
            totals[key].add(cost, places)
    rows = [{**dict(zip(groups, key, strict=True)), **total.to_row()} for key, total in sorted(totals.items())]
    return sorted(rows, key=lambda row: (-row["device_s"], -row["core_s"]))


def _places_by_group(cost: AttemptCost, groups: Sequence[str]) -> dict[tuple[str, ...], list[Place]]:
    by_group: dict[tuple[str, ...], list[Place]] = defaultdict(list)
    for place in cost.places:
        by_group[tuple(GROUPS[name](cost, place) for name in groups)].append(place)
    return by_group


def build_table(rows: Sequence[Mapping[str, Any]], groups: Sequence[str]) -> TextTable:
    """Return a table of usage for people."""
    right = ("attempts", *(title for title, _ in _TIMES))
    lines = [(*(row[name] for name in groups), str(row["attempts"]), *_times(row)) for row in rows]
    total = {name: sum(row[name] for row in rows) for name in COLUMNS}
    note = (
        f"in all: {format_duration(total['gpu_s'])} of GPUs, {format_duration(total['device_s'])} of devices and "
        f"{format_duration(total['core_s'])} of cores; failed: {format_count(total['failed_attempts'], 'attempt')}, "
        f"lost: {format_count(total['lost_attempts'], 'attempt')}"
    )
    return TextTable((*groups, *right), lines, right, (note,))


#: Columns of the table with the values that they show.
_TIMES = (
    ("GPUs", "gpu_s"),
    ("devices", "device_s"),
    ("failed", "failed_device_s"),
    ("lost", "lost_device_s"),
    ("cores", "core_s"),
    ("failed cores", "failed_core_s"),
    ("lost cores", "lost_core_s"),
)


def _times(row: Mapping[str, Any]) -> Iterator[str]:
    for _, name in _TIMES:
        yield format_duration(row[name]) if row[name] else ""
