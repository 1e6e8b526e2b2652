"""How runs of the very same program scatter on one device: learned from those that there are. Pure."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from db.runs import Run
from orchestrator.deciding.intervals import Noise
from orchestrator.repeating.agreement import LEAST_NOISE, NOISE, NOISE_ELSEWHERE

PUBLISHED_FREEDOM = 3.0  #: what is published of other machines counts as so many runs
TELLING_FREEDOM = 8.0  #: so many of ours tell without it
MOST_FREEDOM = 40.0  #: earlier runs never outvote many new ones


@dataclass(frozen=True)
class Noises:
    """The noise of benches: of one variant's metric in one workload on one device."""

    found: Mapping[Hashable, Noise] = field(default_factory=dict)

    def of(self, *runs: Run, beside: int = 0) -> Noise | None:
        """Of the noisiest of the runs' benches, beside what so many runs tell themselves; None: they tell enough."""
        found = [with_published(self.found.get(run.bench), run.target, beside) for run in runs]
        return max(filter(None, found), key=lambda noise: noise.sigma, default=None)


def learned(runs: Iterable[Run]) -> Noises:
    """From A/A pairs: runs on one bench between which neither program, runtime nor driver changed; of our own alone."""
    alike: dict[Hashable, dict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.median > 0 and not run.is_imported:
            alike[run.bench][run.program].append(math.log(run.median))
    found = {bench: _pooled(groups.values()) for bench, groups in alike.items()}
    return Noises({bench: noise for bench, noise in found.items() if noise})


def with_published(found: Noise | None, target: str, beside: int = 0) -> Noise | None:
    """Learned noise; as far as too few runs tell, `beside` it or it, what is published for a target fills up."""
    published = NOISE.get(target, NOISE_ELSEWHERE)
    own = min(found.freedom, MOST_FREEDOM) if found else 0.0
    more = PUBLISHED_FREEDOM * max(0.0, 1 - (own + beside) / TELLING_FREEDOM)
    if not own + more:
        return None
    variance = ((own * found.sigma**2 if found else 0.0) + more * published**2) / (own + more)
    return Noise(max(math.sqrt(variance), LEAST_NOISE), own + more)


def _pooled(groups: Iterable[list[float]]) -> Noise | None:
    scatter = freedom = 0.0
    for logs in groups:
        middle = fmean(logs)
        scatter += sum((value - middle) ** 2 for value in logs)
        freedom += len(logs) - 1
    return Noise(math.sqrt(scatter / freedom), freedom) if freedom else None
