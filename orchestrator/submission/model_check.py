"""The check of a job's models before planning: can they be read, and split as the job asks?"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.errors import JobFileError
from jobs.hashing import SHA256, digest_of
from jobs.models import ModelKind, ModelSource
from jobs.problems import Problem
from jobs.stages.base import Model
from jobs.toolchains import Toolchain
from orchestrator.submission.job_file import JobFile
from orchestrator.submission.model_check_process import ModelCheck, model_files, run_checks
from workers.inputs.content_digests import ContentDigests, Unsteady
from workers.inputs.planned_inputs import READERS

CONFIG = "config.json"  #: its content is part of a model's digest as it is after overrides


def inspect_models(file: JobFile, toolchain: Toolchain, cache: Path) -> list[Model]:
    """Return the facts about a job's models that planning needs; raises JobFileError with the module and the reason.

    A hub model is pinned to its current commit, whatever is pushed there later, and the files of any other to their
    content, so that they must not be written meanwhile.
    """
    models = [source for source in file.sources if source.kind is not ModelKind.PROGRAM]
    checks = [ModelCheck.of(file.spec, source) for source in models]
    answers = run_checks(checks, toolchain, cache)
    checked = {check.source: _checked(file, check, facts, cache) for check, facts in zip(checks, answers, strict=True)}
    return [checked.get(source) or _program(file, source, cache) for source in file.sources]


def _checked(file: JobFile, check: ModelCheck, facts: Mapping[str, Any], cache: Path) -> Model:
    """Return the facts about a model that has been checked."""
    source = check.source
    if "refused" in facts:
        raise _unreadable(file, source, facts["refused"])
    if facts["problems"]:
        raise file.error(_split_problem(file, source, facts["problems"]))
    is_hub = source.kind is ModelKind.HUB
    try:
        files = file_digests(map(Path, facts["files"]), ContentDigests(cache / "inputs"), is_hub=is_hub)
    except OSError as error:
        raise _unreadable(file, source, f"{error.filename} can't be read: {error.strerror}") from error
    if files is None or model_files(source) != check.files:
        raise _unreadable(file, source, "its files are being written: submit the job when they are complete")
    return Model(
        text=source.text,
        name=source.name,
        digest=model_digest(facts["config_digest"], files),
        parameters=facts["parameters"],
        has_weights=source.has_weights,
        is_quantized=facts["is_quantized"],
        revision=check.revision,
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
