"""The check of a job's model before planning: can it be read, and split as the job asks?

The check runs in a process of its own, which imports torch and transformers and takes seconds. Its answer is cached
until the model's files or the programs change.
"""

import json
import subprocess
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.engines import ENGINES, ProcessLayout, engines_with
from jobs.errors import JobFileError
from jobs.hashing import SHA256, digest_of
from jobs.job_file.spec import JobSpec
from jobs.models import ModelKind, ModelSource, content_files, shape_file
from jobs.problems import Problem
from jobs.quantizers import QUANTIZERS
from jobs.stages.base import Model
from jobs.task import Command
from jobs.toolchains import Toolchain
from jobs.variants import HALOCTL, Precision, Variant
from orchestrator.submission import hub
from orchestrator.submission.job_file import JobFile
from workers.durability import write_atomically
from workers.environment import resolve_command
from workers.inputs.content_digests import ContentDigests, Unsteady, identity_of
from workers.inputs.planned_inputs import READERS

CHECK_TIMEOUT_S = 600.0  #: a hub model's config, tokenizer and headers may have to be fetched first
CONFIG = "config.json"  #: its content is part of a model's digest as it is after overrides
REFUSED_EXIT_CODE = 2  #: of the check, for a model that can't be used
CHECK_FAILED = "the check of the model ended with an error"


def inspect_model(file: JobFile, source: ModelSource, toolchain: Toolchain, cache: Path) -> Model:
    """Return the facts about a model that planning needs; raises JobFileError that names the module and the reason.

    A hub model is pinned to its current commit, whatever is pushed there later, and the files of any other to their
    content, so that they must not be written meanwhile.
    """
    if source.kind is ModelKind.PROGRAM:
        return _program(file, source, cache)
    commit = hub.commit(source.text, file.spec.revision) if source.kind is ModelKind.HUB else None
    revision = commit or file.spec.revision
    is_cacheable = commit is not None or source.kind is not ModelKind.HUB
    before = _files(source)
    facts = _facts(file, source, revision, toolchain, cache if is_cacheable else None)
    if facts["problems"]:
        raise file.error(_split_problem(file, source, facts["problems"]))
    is_hub = source.kind is ModelKind.HUB
    try:
        files = file_digests(map(Path, facts["files"]), ContentDigests(cache / "inputs"), is_hub=is_hub)
    except OSError as error:
        raise _unreadable(file, source, f"{error.filename} can't be read: {error.strerror}") from error
    if files is None or _files(source) != before:
        raise _unreadable(file, source, "its files are being written: submit the job when they are complete")
    return Model(
        text=source.text,
        name=source.name,
        digest=model_digest(facts["config_digest"], files),
        parameters=facts["parameters"],
        has_weights=source.has_weights,
        is_quantized=facts["is_quantized"],
        revision=revision,
        overrides=file.spec.overrides,
        files=files,
    )


def _program(file: JobFile, source: ModelSource, cache: Path) -> Model:
    """Return a program that haloctl did not make, of which nothing but its content is known."""
    path = Path(source.text)
    try:
        files = file_digests([path], ContentDigests(cache / "inputs"), is_hub=False)
    except OSError as error:
        raise _unreadable(file, source, f"{error.filename} can't be read: {error.strerror}") from error
    if files is None:
        raise _unreadable(file, source, "it is being written: submit the job when it is complete")
    for key in ("revision", "overrides"):
        if key in file.spec.model_fields_set:
            raise file.error(Problem.at(key, message=f"is not for a program, which {source.text} is"))
    return Model(source.text, source.name, files[path.name], 0, is_program=True, files=files)


def file_digests(files: Iterable[Path], digests: ContentDigests, *, is_hub: bool) -> dict[str, str] | None:
    """Return the sha256 of files by their names; None if one of them changes meanwhile.

    The hub's cache names large files after their sha256, which is what the hub has, whatever is in them.
    """

    def read(file: Path) -> str:
        blob = file.resolve().name if is_hub else ""
        return blob if SHA256.fullmatch(blob) else digests.read(file).sha256

    files = list(files)
    with suppress(Unsteady), ThreadPoolExecutor(READERS) as pool:
        return {file.name: sha256 for file, sha256 in zip(files, pool.map(read, files), strict=True)}
    return None


def model_digest(config_digest: str, files: Mapping[str, str]) -> str:
    """Return a sha256 of a model: of its config after overrides, and of its other files, wherever they are."""
    others = {name: sha256 for name, sha256 in files.items() if name != CONFIG}
    return digest_of([config_digest, others])


def _facts(
    file: JobFile, source: ModelSource, revision: str | None, toolchain: Toolchain, cache: Path | None
) -> dict[str, Any]:
    command = _command(file.spec, source, revision)
    identity = digest_of([command.argv, _files(source), dict(toolchain.versions), toolchain.programs])
    cached = cache and cache / "models" / f"{identity}.json"
    facts = _read(cached) if cached else None
    if facts is None or not all(Path(name).exists() for name in facts["files"]):  # a hub's may have been removed
        facts = _run(command, file, source)
        if cached:
            _write(cached, facts)
    return facts


def _command(spec: JobSpec, source: ModelSource, revision: str | None) -> Command:
    variants = spec.variants.of("", source.aliases)
    programs = [variant for variant in variants if ENGINES[variant.engine].is_compiled_by_iree]
    exported = [variant for variant in programs if variant.exporter == HALOCTL]
    groups = _groups(spec, exported)
    precisions = sorted({variant.precision.value for variant in exported})
    pipelines = sorted({variant.pp for variant in variants if variant.exporter == "sharktank"})
    attentions = sorted({variant.attention.value for variant in programs})
    return Command(
        (
            "python",
            "-m",
            "workers.llm.programs.check",
            f"--model={source.text}",
            *([f"--revision={revision}"] if revision else []),
            *(f"--override={key}={json.dumps(value)}" for key, value in sorted(spec.overrides.items())),
            "--tp",
            *_tensor_parallelisms(programs),
            "--torch-tp",
            *_tensor_parallelisms(
                variant for variant in variants if variant.engine in engines_with(ProcessLayout.RANKS)
            ),
            *(["--int4", *groups] if groups else []),
            *(["--precision", *precisions] if precisions else []),
            *(["--sharktank", *map(str, pipelines)] if pipelines else []),
            *(["--attention", *attentions] if attentions else []),
            f"--cache-length={spec.workload.cache_tokens}",
            *([] if source.has_weights else ["--no-weights"]),  # an export's parameter files follow from them too
        )
    )


def _tensor_parallelisms(variants: Iterable[Variant]) -> list[str]:
    return [str(tp) for tp in sorted({variant.tp for variant in variants})]


def _groups(spec: JobSpec, variants: Collection[Variant]) -> list[str]:
    """Return the devices that weights in groups of columns are split over, with the group size if it is set: `8:64`."""
    groups = set()
    for variant in variants:
        scheme = QUANTIZERS[variant.quantizer].schemes.get(Precision.INT4)
        if scheme and variant.precision is Precision.INT4:
            size = scheme.group_size or spec.quantize.group_size
            groups.add(f"{variant.tp}:{size}" if size else str(variant.tp))
    return sorted(groups)


def _files(source: ModelSource) -> list[tuple[str, str]]:
    """Return names and identities of a model's files; while they stay the same, so does the cached answer."""
    if source.kind is ModelKind.SHAPE:
        paths = [shape_file(source)]
    else:
        paths = content_files(source.folder) if source.folder else []
    return [(path.name, identity_of(path)) for path in paths]


def _run(command: Command, file: JobFile, source: ModelSource) -> dict[str, Any]:
    argv, env = resolve_command(command)
    try:
        process = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _unreadable(file, source, f"could not be read within {CHECK_TIMEOUT_S:.0f} s") from error
    if process.returncode != 0:
        last = (process.stderr.strip().splitlines() or ["it printed nothing"])[-1].removeprefix("error: ")
        is_refusal = process.returncode == REFUSED_EXIT_CODE
        raise _unreadable(file, source, last if is_refusal else f"{CHECK_FAILED} ({process.returncode}): {last}")
    facts: dict[str, Any] = json.loads(process.stdout)
    return facts


def _unreadable(file: JobFile, source: ModelSource, message: str) -> JobFileError:
    key = ("model", file.sources.index(source))
    return file.error(Problem(f"{source.text}: {message}", (key, ("model",))))


def _split_problem(file: JobFile, source: ModelSource, problems: list[Mapping[str, Any]]) -> Problem:
    """Return the first reason why a model can't be split or exported, with the number of the others."""
    first, others = problems[0], len(problems) - 1
    place = f"tp {first['tp']}: {first['module']}" if first.get("tp") else first["module"]
    message = f"{source.text}: {place}: {first['reason']}" + (f" (and {others} more)" if others else "")
    model = (("model", file.sources.index(source)), ("model",))
    return Problem(message, (("variants", "tp"), *model) if first.get("tp") else model)


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, json.JSONDecodeError):
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts
    return None


def _write(path: Path, facts: Mapping[str, Any]) -> None:
    """Cache an answer; a cache that can't be written is ignored."""
    with suppress(OSError):
        write_atomically(path, json.dumps(facts))
