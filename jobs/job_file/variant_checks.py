"""The checks of single variants: combinations of axes that can't work."""

from collections.abc import Callable, Iterator

from jobs import limits, quantizers
from jobs.engines import ENGINES, ProcessLayout, engines_with
from jobs.exporters import EXPORTERS
from jobs.problems import Problem
from jobs.targets import TARGETS, fp8_targets
from jobs.variants import AXIS_DEFAULTS, Attention, Variant


def _devices(variant: Variant) -> Problem | None:
    if variant.device_count <= limits.MAX_DEVICES:
        return None
    message = f"{variant.device_count} devices are more than {limits.MAX_DEVICES}"
    return Problem.of_variant(variant, "tp", "pp", message=message)


def _exporter(variant: Variant) -> Problem | None:
    return EXPORTERS[variant.exporter].problem(variant)


def _low_precision(variant: Variant) -> Problem | None:
    engine = ENGINES[variant.engine]
    if variant.precision not in engine.precisions:
        able = ", ".join(sorted(engine.precisions))
        return Problem.of_variant(
            variant, "engine", "precision", message=f"the engine {variant.engine} runs only {able}"
        )
    if variant.kv_precision != AXIS_DEFAULTS["kv_precision"] and "kv_precision" not in engine.axes:
        message = f"the engine {variant.engine} keeps its KV cache in the precision of activations"
        return Problem.of_variant(variant, "engine", "kv_precision", message=message)
    return None


def _target(variant: Variant) -> Problem | None:
    targets = ENGINES[variant.engine].targets
    if targets is None or variant.target in targets:
        return None
    message = f"the engine {variant.engine} runs only on {', '.join(sorted(targets))}"
    return Problem.of_variant(variant, "engine", "target", message=message)


def _fp8_target(variant: Variant) -> Problem | None:
    axis = next((axis for axis in ("precision", "kv_precision") if getattr(variant, axis) == "fp8"), None)
    if axis is None or TARGETS[variant.target].fp8 or not ENGINES[variant.engine].is_compiled_by_iree:
        return None
    message = f"IREE compiles no fp8 for {variant.target}, only for {', '.join(fp8_targets())}"
    return Problem.of_variant(variant, axis, "target", message=message)


def _nodes(variant: Variant) -> Problem | None:
    if variant.nodes > 1 and ENGINES[variant.engine].layout is not ProcessLayout.RANKS:
        message = f"programs of the engine {variant.engine} run on one node"
        return Problem.of_variant(variant, "engine", "nodes", message=message)
    if variant.tp % variant.nodes:
        message = f"{variant.tp} ranks do not spread evenly over {variant.nodes} nodes"
        return Problem.of_variant(variant, "tp", "nodes", message=message)
    return None


def _attention(variant: Variant) -> Problem | None:
    axes = ("engine", "target", "attention")
    attention, attentions = variant.attention, ENGINES[variant.engine].attentions
    if attention not in attentions and attention is Attention.FLASH_2:
        able = ", ".join(engines_with(ProcessLayout.RANKS))
        return Problem.of_variant(variant, *axes, message=f"{attention} is only for the engines {able}")
    if attention not in attentions:
        message = f"the engine {variant.engine} has only attention {', '.join(sorted(attentions))}"
        return Problem.of_variant(variant, *axes, message=message)
    if attention is Attention.FLASH_2 and TARGETS[variant.target].torch_device == "cpu":
        return Problem.of_variant(variant, *axes, message=f"{attention} runs only on GPUs")
    return None


VARIANT_CHECKS: tuple[Callable[[Variant], Problem | None], ...] = (
    _devices,
    _exporter,
    quantizers.variant_problem,
    _target,
    _fp8_target,
    _nodes,
    _attention,
    _low_precision,
)


def variant_problems(variant: Variant) -> Iterator[Problem]:
    """Yield why a variant can't run."""
    yield from (problem for check in VARIANT_CHECKS if (problem := check(variant)))
