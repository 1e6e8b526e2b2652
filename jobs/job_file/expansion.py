"""The expansion of a job file's axes into variants."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from jobs.exporters import normalize_axes
from jobs.variants import Axes, Variant, variant_of


def expand(
    model: str,
    targets: Iterable[str],
    values: Mapping[str, Iterable[Any]],
    exclude: Iterable[Mapping[str, Any]] = (),
) -> list[Variant]:
    """Return all combinations of `values` in order, without those that agree with all keys of an exclusion.

    `values` has the values of each axis; the last axis changes first. Equal variants are returned once.
    """
    rules = list(exclude)
    included = (
        (target, Axes(**axes))
        for target, *combination in product(targets, *values.values())
        if not _is_excluded({**(axes := dict(zip(values, combination, strict=True))), "target": target}, rules)
    )
    return list(dict.fromkeys(variant_of(model, target, normalize_axes(axes)) for target, axes in included))


def _is_excluded(combination: Mapping[str, Any], rules: Iterable[Mapping[str, Any]]) -> bool:
    return any(all(combination[key] == value for key, value in rule.items()) for rule in rules)
