"""The process that checks models, and the answers of earlier ones.

It imports torch and transformers, which takes seconds, so that a process checks all models of a job. Each answer is
cached until the model's files or the programs change.
"""

import json
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.engines import ENGINES, ProcessLayout, engines_with
from jobs.hashing import digest_of
from jobs.job_file.spec import JobSpec
from jobs.models import ModelKind, ModelSource, content_files, shape_file
from jobs.quantizers import QUANTIZERS
from jobs.task import Command
from jobs.toolchains import Toolchain
from jobs.variants import HALOCTL, Precision, Variant
from orchestrator.submission import hub
from workers.durability import write_atomically
from workers.environment import resolve_command
from workers.inputs.content_digests import identity_of

PROGRAM = ("python", "-m", "workers.llm.programs.check")
NEXT_MODEL = "--next-model"  #: between the options of two models
TIMEOUT_S = 600.0  #: of a model: a hub model's config, tokenizer and headers may have to be fetched first
CHECK_FAILED = "the check of the model ended with an error"


@dataclass(frozen=True)
class ModelCheck:
    """The question whether a model can be used for what a job plans."""

    source: ModelSource
    revision: str | None
    options: Sequence[str]
    files: Sequence[tuple[str, str]]  #: names and identities; while they stay the same, so does the answer
    is_cacheable: bool  #: not for a hub model of which no commit is known

    @staticmethod
    def of(spec: JobSpec, source: ModelSource) -> "ModelCheck":
        """Return the check of a job's model, for a hub model at its current commit."""
        is_hub = source.kind is ModelKind.HUB
        commit = hub.commit(source.text, spec.revision) if is_hub else None
        revision = commit or spec.revision
        is_cacheable = not is_hub or commit is not None
        return ModelCheck(source, revision, _options(spec, source, revision), model_files(source), is_cacheable)

    def cached_in(self, cache: Path, toolchain: Toolchain) -> Path | None:
        """Return the file that has the answer once it is known."""
        identity = digest_of([(*PROGRAM, *self.options), self.files, dict(toolchain.versions), toolchain.programs])
        return cache / "models" / f"{identity}.json" if self.is_cacheable else None


def run_checks(checks: Sequence[ModelCheck], toolchain: Toolchain, cache: Path) -> list[Mapping[str, Any]]:
    """Return the answers in order: what the program prints for each model."""
    places = [check.cached_in(cache, toolchain) for check in checks]
    answers = [_read(place) if place else None for place in places]
    unknown = [number for number, answer in enumerate(answers) if answer is None]
    for number, answer in zip(unknown, _run([checks[number] for number in unknown]), strict=True):
        answers[number] = answer
        if (place := places[number]) and "refused" not in answer:
            _write(place, answer)
    return [answer for answer in answers if answer is not None]


def model_files(source: ModelSource) -> list[tuple[str, str]]:
    """Return names and identities of a model's files; a hub model has none yet."""
    if source.kind is ModelKind.SHAPE:
        paths = [shape_file(source)]
    else:
        paths = content_files(source.folder) if source.folder else []
    return [(path.name, identity_of(path)) for path in paths]


def _options(spec: JobSpec, source: ModelSource, revision: str | None) -> Sequence[str]:
    variants = spec.variants.of("", source.aliases)
    programs = [variant for variant in variants if ENGINES[variant.engine].is_compiled_by_iree]
    exported = [variant for variant in programs if variant.exporter == HALOCTL]
    groups = _groups(spec, exported)
    precisions = sorted({variant.precision.value for variant in exported})
    pipelines = sorted({variant.pp for variant in variants if variant.exporter == "sharktank"})
    attentions = sorted({variant.attention.value for variant in programs})
    by_ranks = (variant for variant in variants if variant.engine in engines_with(ProcessLayout.RANKS))
    return (
        f"--model={source.text}",
        *([f"--revision={revision}"] if revision else []),
        *(f"--override={key}={json.dumps(value)}" for key, value in sorted(spec.overrides.items())),
        *("--tp", *_tensor_parallelisms(programs)),
        *("--torch-tp", *_tensor_parallelisms(by_ranks)),
        *(["--int4", *groups] if groups else []),
        *(["--precision", *precisions] if precisions else []),
        *(["--sharktank", *map(str, pipelines)] if pipelines else []),
        *(["--attention", *attentions] if attentions else []),
        f"--cache-length={spec.workload.cache_tokens}",
        *([] if source.has_weights else ["--no-weights"]),  # an export's parameter files follow from them too
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


def _run(checks: Sequence[ModelCheck]) -> Iterator[Mapping[str, Any]]:
    """Yield the answers of one process; the models that it did not get to answer for are refused with the reason."""
    if not checks:
        return
    options = [option for check in checks for option in (NEXT_MODEL, *check.options)][1:]
    argv, env = resolve_command(Command((*PROGRAM, *options)))
    timeout_s = TIMEOUT_S * len(checks)
    try:
        process = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
        printed = process.stdout
        last = (process.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        reason = f"{CHECK_FAILED} ({process.returncode}): {last}"
    except subprocess.TimeoutExpired as error:
        printed, reason = error.stdout or b"", f"could not be read within {timeout_s:.0f} s"
    answers = printed.splitlines()[: len(checks)]
    yield from map(json.loads, answers)
    yield from [{"refused": reason}] * (len(checks) - len(answers))


def _read(path: Path) -> Mapping[str, Any] | None:
    """Return a cached answer, unless a file of the model has been removed since, as a hub's may have been."""
    with suppress(OSError, json.JSONDecodeError):
        answer: Mapping[str, Any] = json.loads(path.read_text())
        return answer if all(Path(name).exists() for name in answer["files"]) else None
    return None


def _write(path: Path, answer: Mapping[str, Any]) -> None:
    """Cache an answer; a cache that can't be written is ignored."""
    with suppress(OSError):
        write_atomically(path, json.dumps(answer))
