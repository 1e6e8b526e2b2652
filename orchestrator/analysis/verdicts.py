"""Verdicts on two sets of runs, and the metrics that are judged by a tolerance rather than by noise. Pure."""

import math
from dataclasses import dataclass
from enum import StrEnum

from jobs.metrics import ANALYSED, KERNEL_FACTS, METRICS

SPEED_UNITS = frozenset({"ms", "s", "tokens/s"})  #: of what is faster or slower, rather than better or worse


class Verdict(StrEnum):
    """How new runs compare with old ones."""

    FASTER = "faster"
    SLOWER = "slower"
    BETTER = "better"  #: a metric that is no speed
    WORSE = "worse"
    EQUIVALENT = "equivalent"  #: the interval lies within the margin
    INCONCLUSIVE = "inconclusive"  #: more runs are needed
    AGREES = "agrees"  #: the interval reaches into the noise, or the content is the same
    DIFFERS = "differs"  #: content or a deterministic metric is not the same
    MISSING = "missing"  #: only one of the two has it
    UNJUDGED = "not judged"  #: nothing to judge it by


DIFFERENT = frozenset({Verdict.FASTER, Verdict.SLOWER, Verdict.BETTER, Verdict.WORSE})
AGREEING = frozenset({Verdict.AGREES, Verdict.UNJUDGED})


@dataclass(frozen=True)
class Tolerance:
    """How far two values of the same computation may be apart: either bound is enough."""

    relative: float = 0.0
    absolute: float = 0.0

    def allows(self, old: float, new: float) -> bool:
        """Whether two values count as the same."""
        return math.isclose(old, new, rel_tol=self.relative, abs_tol=self.absolute)


#: Floors on CPUs follow from peaks that each node has measured for itself.
KERNEL_TOLERANCES = {"floor_ms": Tolerance(relative=0.3), "link_floor_ms": Tolerance(relative=0.3)}

#: Metrics that follow from what was computed, not from how fast: another order of additions moves them this far.
DETERMINISTIC: dict[str, Tolerance] = {
    "perplexity": Tolerance(relative=1e-3),
    "reference_perplexity": Tolerance(relative=1e-3),
    "perplexity_increase_percent": Tolerance(absolute=0.1),
    "argmax_agreement": Tolerance(absolute=0.01),
    "max_logit_diff": Tolerance(relative=0.25, absolute=1e-5),
    "mean_logit_diff": Tolerance(relative=0.05, absolute=1e-6),
    "kl_mean": Tolerance(relative=0.1, absolute=1e-9),
    "kl_max": Tolerance(relative=0.25, absolute=1e-7),
    "quantized_kl_mean": Tolerance(relative=0.25, absolute=1e-7),
    "scale_error_percent": Tolerance(absolute=0.1),
    "eval_score": Tolerance(absolute=0.005),
    "eval_loss": Tolerance(relative=1e-3),
    "eval_stderr": Tolerance(relative=0.05),
    "eval_drop": Tolerance(absolute=0.005),
    "eval_drop_stderr": Tolerance(absolute=0.005),
    "mlir_bytes": Tolerance(),
    "parameter_bytes": Tolerance(),
    "vmfb_bytes": Tolerance(),
    "mfma_prefill": Tolerance(),
    "mfma_decode": Tolerance(),
    "mfma_extend": Tolerance(),
    "mfma_score": Tolerance(),
    **{f"{entry}_{fact}": KERNEL_TOLERANCES.get(fact, Tolerance()) for entry in ANALYSED for fact in KERNEL_FACTS},
}


def direction(metric: str, difference: float) -> Verdict:
    """Name a difference, new minus old, that is known to be real."""
    is_better = (difference < 0) == METRICS[metric].is_lower_better
    if METRICS[metric].unit in SPEED_UNITS:
        return Verdict.FASTER if is_better else Verdict.SLOWER
    return Verdict.BETTER if is_better else Verdict.WORSE
