"""A job file with one of its variants alone, which runs without being measured everywhere or judged."""

from collections.abc import Sequence
from typing import Any

from jobs.job_file.spec import JobSpec
from jobs.stages.base import Model
from jobs.variants import Variant


def spec_of_variant(spec: JobSpec, variant: Variant, model: Model, stages: Sequence[str], **changes: Any) -> JobSpec:
    """Return the job file with the variant alone and these stages; `changes` replace keys, or axes of `variants`."""
    fields = spec.model_dump(mode="json")
    names = {"finetune": variant.finetune, "flags": variant.flags, "env": variant.env}
    named = {axis: {name: fields["variants"][axis][name]} for axis, name in names.items()}
    axes = {**variant.axes, **named, "target": variant.target}
    alone = {
        "model": [model.text],
        "stages": list(stages),
        "variants": {**axes, **changes.pop("variants", {})},
        "benchmark": {**fields["benchmark"], "on": "any"},
        "gate": None,
    }
    return JobSpec.model_validate({**fields, **alone, **changes})
