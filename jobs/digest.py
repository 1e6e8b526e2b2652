"""The identity of a task: tasks with equal digests have equal outputs."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jobs.artifact_kinds import is_input
from jobs.hashing import digest_of
from jobs.input_files import without_paths
from jobs.stages.base import Stage
from jobs.task import Artifact
from jobs.toolchains import Toolchain


def identity_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without the places of the model and of files, because their digests identify them."""
    identifying: dict[str, Any] = without_paths(settings)
    if "model" not in identifying:
        return identifying
    return {**identifying, "model": {key: value for key, value in identifying["model"].items() if key != "text"}}


def identity(
    stage: Stage,
    settings: Mapping[str, Any],
    toolchain: Toolchain,
    inputs: Mapping[str, Iterable[Artifact]],
) -> dict[str, Any]:
    """Return everything that determines a task's outputs, as a JSON value; `inputs` are by the stage that made them."""
    is_on_host = settings.get("target", "cpu") == "cpu" and not stage.is_portable
    return {
        "stage": stage.name,
        "version": stage.version,
        "settings": identity_settings(settings),
        "toolchain": dict(toolchain.versions),
        "program": toolchain.programs if stage.has_program else "",
        "host_cpu": toolchain.host_cpu if is_on_host else "",
        "inputs": {
            name: sorted([artifact.name, artifact.sha256] for artifact in artifacts if is_input(artifact.kind))
            for name, artifacts in inputs.items()
        },
    }


def task_digest(
    stage: Stage,
    settings: Mapping[str, Any],
    toolchain: Toolchain,
    inputs: Mapping[str, Iterable[Artifact]],
) -> str:
    """Return the digest of a task's identity."""
    return digest_of(identity(stage, settings, toolchain, inputs))


def entries(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity's parts by dotted names: `settings.flags`, `toolchain.torch`, `inputs.export.model.mlir`."""
    inputs = {stage: dict(files) for stage, files in identity["inputs"].items()}
    return dict(_leaves("", {**identity, "inputs": inputs}))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries that two identities differ in, each with its values `old` and `new` where it exists."""
    before, after = entries(old), entries(new)
    names = [name for name in {**before, **after} if not _is_shared(name, before, after)]
    sides = (("old", before), ("new", after))
    return [{"entry": name, **{side: values[name] for side, values in sides if name in values}} for name in names]


def count_shared_entries(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """Return the number of entries that two identities share."""
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
