"""The job that serves a variant: what an earlier job had compiled, and a server over it."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from db.reads import replanning
from db.schema import loose_scan
from jobs import limits
from jobs.errors import BadSetting, NothingToDo
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan, unpinned_variants
from jobs.stages import STAGES
from jobs.stages.base import Model
from jobs.variants import KvCache, Variant
from orchestrator.context import Context
from orchestrator.submission.single_variant import spec_of_variant
from orchestrator.toolchains import site_toolchains

SERVER = "server"


@dataclass(frozen=True)
class ServingJob:
    """A job with one variant and its server."""

    spec: JobSpec
    model: Model
    plan: Plan


def serving_job(context: Context, name: str, target: str | None, settings: Mapping[str, Any]) -> ServingJob:
    """Plan to serve a variant that some job was submitted with; `settings` are those of the section `serve`.

    Raises NothingToDo for a variant that nobody submitted, BadSetting where it can't be served.
    """
    job = replanning.newest_job_of(context.database, name, target)
    if job is None:
        raise NothingToDo(f"no job has had the variant {name}{_on(target)}: {_remedy(context, name)}")
    fields, model = replanning.job_facts(context.database, job)
    spec = JobSpec.model_validate(fields)
    variant = _variant_of(spec, model, name, target)
    if variant.kv_cache is not KvCache.PAGED:
        raise BadSetting(
            "VARIANT", f"{name} has no paged KV cache: submit it with `kv_cache: paged` among its variants"
        )
    served = _spec_of(spec, variant, model.named(variant.model), settings)
    planned = plan(served, model.named(variant.model), (), site_toolchains.read_toolchains(context.settings))
    if not any(task.stage == SERVER for task in planned.tasks):
        raise BadSetting("VARIANT", f"the engine {variant.engine} has no server")
    return ServingJob(served, model.named(variant.model), planned)


def _variant_of(spec: JobSpec, model: Model, name: str, target: str | None) -> Variant:
    variants = [variant for single in model.all for variant in unpinned_variants(spec, single)]
    named = [variant for variant in variants if variant.name == name and target in (None, variant.target)]
    if not named:
        raise NothingToDo(f"the job file of {name} no longer means this variant: submit it again")
    targets = sorted({variant.target for variant in named})
    if len(targets) > 1:
        raise BadSetting("--target", f"choose one of {', '.join(targets)}")
    return named[0]


def _spec_of(spec: JobSpec, variant: Variant, model: Model, settings: Mapping[str, Any]) -> JobSpec:
    """Return the job file with the variant alone, and with the stages that its server needs."""
    needed = {*STAGES[SERVER].needs, *({"quantize"} & set(spec.stages)), SERVER}
    return spec_of_variant(
        spec,
        variant,
        model,
        [name for name in STAGES if name in needed],
        name=f"serve {variant.name}",
        serve={**spec.serve.model_dump(mode="json"), **settings},
        timeout=limits.MAX_TIMEOUT_S,
    )


def _on(target: str | None) -> str:
    return f" on {target}" if target else ""


def _remedy(context: Context, name: str) -> str:
    with context.database.reading() as connection:
        close = get_close_matches(name, loose_scan.variants(connection))
    return (
        f"did you mean {' or '.join(close)}?" if close else "`haloctl matrix` shows those there are; submit one first"
    )
