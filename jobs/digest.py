"""The identity of a task: equal digests mean equal outputs."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jobs.hashing import digest_of
from jobs.stages.base import Stage
from jobs.task import Artifact
from jobs.toolchains import Toolchain

HOSTLESS = frozenset({"quantize", "export"})  #: stages whose outputs serve every host
UNREAD_KINDS = frozenset({"log", "report"})  #: artifacts that no later stage reads: they have times in them


def what_matters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without where the model lies: its digest says what it is."""
    kept = dict(settings)
    if "model" in kept:
        kept["model"] = {key: value for key, value in kept["model"].items() if key != "text"}
    return kept


def identity(
    stage: Stage,
    settings: Mapping[str, Any],
    toolchain: Toolchain,
    inputs: Mapping[str, Iterable[Artifact]],
) -> dict[str, Any]:
    """All that a task's outputs follow from, as a JSON value; `inputs` by the stage that made them."""
    return {
        "stage": stage.name,
        "version": stage.version,
        "settings": what_matters(settings),
        "toolchain": dict(toolchain.versions),
        "program": toolchain.programs if stage.has_program else "",
        "host_cpu": toolchain.host_cpu if settings.get("target", "cpu") == "cpu" and stage.name not in HOSTLESS else "",
        "inputs": {
            name: sorted(
                [artifact.name, artifact.sha256] for artifact in artifacts if artifact.kind not in UNREAD_KINDS
            )
            for name, artifacts in inputs.items()
        },
    }


def task_digest(
    stage: Stage,
    settings: Mapping[str, Any],
    toolchain: Toolchain,
    inputs: Mapping[str, Iterable[Artifact]],
) -> str:
    """The digest of a task's identity."""
    return digest_of(identity(stage, settings, toolchain, inputs))


def entries(found: Mapping[str, Any]) -> dict[str, Any]:
    """An identity's parts by dotted names: `settings.flags`, `toolchain.torch`, `inputs.export.model.mlir`."""
    inputs = {stage: dict(files) for stage, files in found["inputs"].items()}
    return dict(_leaves("", {**found, "inputs": inputs}))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `entry` names that two identities differ in, each with `old` and `new`; a side that lacks it has no value."""
    before, after = entries(old), entries(new)
    names = [name for name in {**before, **after} if not _is_shared(name, before, after)]
    sides = (("old", before), ("new", after))
    return [{"entry": name, **{side: has[name] for side, has in sides if name in has}} for name in names]


def likeness(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """How many entries two identities share."""
    before, after = entries(old), entries(new)
    return sum(_is_shared(name, before, after) for name in before)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(f"{name}.{key}" if name else key, inner)


def _is_shared(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return name in before and name in after and bool(before[name] == after[name])
