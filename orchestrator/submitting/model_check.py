"""Finding out about a job's model before anything is planned: can it be read, and split as the job asks?

The check runs in a process of its own (it imports torch and transformers, seconds that no command line should wait for
twice): its answer is kept until the model's files or the programs change.
"""

import json
import subprocess
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.errors import BadModel
from jobs.hashing import digest_of
from jobs.models import ModelKind, ModelSource, shape_file
from jobs.quantizers import MAKERS
from jobs.spec import JobSpec
from jobs.stages.base import Model
from jobs.task import Command
from jobs.toolchains import Toolchain
from jobs.variants import TORCH_ENGINES, Engine, Exporter, Precision, Variant
from orchestrator.submitting import hub
from workers.environment import resolve

CHECK_TIMEOUT_S = 600.0  #: a hub model's config, tokenizer and headers may have to be fetched first


def find_out(spec: JobSpec, source: ModelSource, toolchain: Toolchain, cache: Path) -> Model:
    """What plans need to know of the model; raises BadModel naming the module or file and the reason.

    A hub model is that of one commit from now on, whatever is pushed there later.
    """
    commit = hub.commit(source.text, spec.revision) if source.kind is ModelKind.HUB else None
    revision = commit or spec.revision
    command = _command(spec, source, revision)
    identity = digest_of([command.argv, _files(source), dict(toolchain.versions), toolchain.programs])
    kept = cache / "models" / f"{identity}.json"
    found = _read(kept) if commit or source.kind is not ModelKind.HUB else None
    if found is None:
        found = _run(command, source)
        _write(kept, found)
    _refuse_problems(source, found)
    return Model(
        text=source.text,
        name=source.name,
        digest=found["digest"],
        parameters=found["parameters"],
        has_weights=source.has_weights,
        is_quantized=found["is_quantized"],
        revision=revision,
        overrides=spec.overrides,
    )


def _command(spec: JobSpec, source: ModelSource, revision: str | None) -> Command:
    wanted = spec.variants.of("", source.called)
    attentions = sorted({one.attention.value for one in wanted if one.engine is Engine.IREE})
    return Command(
        (
            "python",
            "-m",
            "workers.llm.check",
            f"--model={source.text}",
            *([f"--revision={revision}"] if revision else []),
            *(f"--override={key}={json.dumps(value)}" for key, value in sorted(spec.overrides.items())),
            "--tp",
            *map(str, _tps(wanted, {Engine.IREE})),
            "--torch-tp",
            *map(str, _tps(wanted, TORCH_ENGINES)),
            *(["--int4", *groups] if (groups := _groups(spec, wanted)) else []),
            *(["--precision", *precisions] if (precisions := _precisions(wanted)) else []),
            *(["--sharktank", *map(str, pps)] if (pps := _pipelines(wanted)) else []),
            *(["--attention", *attentions] if attentions else []),
            f"--cache-length={spec.workload.cache_tokens}",
            *([] if source.has_weights else ["--no-weights"]),  # an export's parameter files follow from them too
        )
    )


def _tps(variants: Iterable[Variant], engines: Collection[Engine]) -> list[int]:
    return sorted({variant.tp for variant in variants if variant.engine in engines})


def _pipelines(variants: Iterable[Variant]) -> list[int]:
    """Over how many devices sharktank is to lay the model's layers."""
    return sorted({one.pp for one in variants if one.exporter is Exporter.SHARKTANK})


def _precisions(variants: Iterable[Variant]) -> list[str]:
    """What programs of haloctl's own will be in."""
    return sorted({one.precision.value for one in variants if _is_exported(one)})


def _is_exported(variant: Variant) -> bool:
    return (variant.engine, variant.exporter) == (Engine.IREE, Exporter.HALOCTL)


def _groups(spec: JobSpec, variants: Iterable[Variant]) -> list[str]:
    """For how many devices weights will be in groups of columns, and of how many if that is given: `8:64`."""
    found = set()
    for one in variants:
        offer = MAKERS[one.quantizer].offers.get(Precision.INT4)
        if offer and one.precision is Precision.INT4 and _is_exported(one):
            size = offer.group_size or spec.quantize.group_size
            found.add(f"{one.tp}:{size}" if size else str(one.tp))
    return sorted(found)


def _files(source: ModelSource) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a model's files: as long as they stay, so does what was found out."""
    if source.kind is ModelKind.SHAPE:
        paths = [shape_file(source)]
    else:
        paths = sorted(path for path in source.folder.iterdir() if path.is_file()) if source.folder else []
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def _run(command: Command, source: ModelSource) -> dict[str, Any]:
    argv, env = resolve(command)
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BadModel(source.text, f"could not be read within {CHECK_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["the check said nothing"])[-1]
        raise BadModel(source.text, last.removeprefix("error: "))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _refuse_problems(source: ModelSource, found: Mapping[str, Any]) -> None:
    problems = found["problems"]
    if problems:
        first, more = problems[0], len(problems) - 1
        place = f"tp {first['tp']}: {first['module']}: " if first.get("tp") else f"{first['module']}: "
        raise BadModel(source.text, place + first["reason"] + (f" (and {more} more)" if more else ""))


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, json.JSONDecodeError):
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return None


def _write(path: Path, found: Mapping[str, Any]) -> None:
    """Keep an answer; doing without is no harm."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(found))
        fresh.replace(path)
