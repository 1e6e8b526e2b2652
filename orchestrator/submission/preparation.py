"""The preparation of jobs: from a file's name on the command line to a plan that can be stored."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from db.schema.actors import current_actor
from db.store import Store, Submission
from jobs.errors import BadSetting
from jobs.input_files import InputFile
from jobs.job_file.files import with_files
from jobs.job_file.job_checks import (
    flags_problem,
    installation_problem,
    job_problem,
    places_problem,
    program_problem,
    quantization_problem,
    training_problem,
    weights_problem,
)
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan
from jobs.problems import Key, Problem
from jobs.stages import STAGES
from jobs.stages.base import Model
from jobs.task import Node
from jobs.toolchains import Toolchain, ToolchainSpec
from jobs.training_data import BadTrainingData, read_examples
from jobs.variants import BenchmarkPlacement
from orchestrator import known_nodes, yaml_document
from orchestrator.settings import Settings
from orchestrator.submission import job_file, model_check
from orchestrator.submission.job_file import JobFile
from orchestrator.submission.readable_folders import ReadableFolders
from orchestrator.submission.submit_options import ALL_OUTPUTS, NO_OPTIONS, CacheOptions, SubmitOptions
from orchestrator.toolchains import site_toolchains
from workers.inputs.content_digests import ContentDigests, Unsteady
from workers.toolchain_probe import probe_toolchain

PASTED = Path("job file")  #: stands for a job file that came as a text


@dataclass(frozen=True)
class PreparedJob:
    """A job that passed all checks and can be stored."""

    spec: JobSpec
    model: Model
    plan: Plan
    toolchain: Toolchain  #: the default one


def prepare(name: str, settings: Settings, options: SubmitOptions = NO_OPTIONS) -> PreparedJob:
    """Read a job file or recipe, check its models and plan it. Raises UserError for anything that can't work."""
    toolchains = site_toolchains.read_toolchains(settings)
    return _prepare(job_file.load(name, toolchains), settings, options, toolchains)


def prepare_text(text: str, readable: ReadableFolders, settings: Settings, options: SubmitOptions) -> PreparedJob:
    """Do what `prepare` does with the text of a job file, which may name files in readable folders alone."""
    toolchains = site_toolchains.read_toolchains(settings)
    document = yaml_document.parse(text, PASTED)
    return _prepare(job_file.check(document, readable, toolchains), settings, options, toolchains)


def _prepare(
    file: JobFile, settings: Settings, options: SubmitOptions, toolchains: Mapping[str, ToolchainSpec]
) -> PreparedJob:
    file = with_options(file, options, toolchains)
    nodes = _nodes(file, options)
    toolchain = probe_toolchain(settings.cache)
    problems = [flags_problem(file.spec, settings.compiler_flags), program_problem(file.spec, file.sources)]
    problems += [weights_problem(file.spec, source) for source in file.sources]
    problems.append(installation_problem(file.spec, toolchain.versions, toolchains))
    _refuse(file, problems)
    file = with_digests(file, settings.cache)
    _refuse(file, training_data_problems(file.spec))
    models = model_check.inspect_models(file, toolchain, settings.cache)
    for problem in (quantization_problem, training_problem):
        _refuse(file, [problem(file.spec, model) for model in models])
    model = replace(models[0], more=tuple(models[1:]))
    planned = plan(file.spec, model, nodes, toolchains)
    if not planned.variants:
        raise file.error(Problem.at("variants", "exclude", message="leaves no variant"))
    if options.start is not None:
        _refuse(file, [start_problem(options.start, file.spec)])
        planned = run_again_from(options.start, planned)
    return PreparedJob(file.spec, model, planned, toolchain)


def with_digests(file: JobFile, cache: Path) -> JobFile:
    """Return the job file with the sha256 of each file that it names; raises JobFileError if it pins another one."""
    digests = ContentDigests(cache / "inputs")

    def digest(key: Key, named: InputFile) -> InputFile:
        try:
            sha256 = digests.read(Path(named.path)).sha256
        except Unsteady:
            raise file.error(
                Problem(f"{named.path} is being written: submit the job when that is done", (key,))
            ) from None
        except OSError as error:
            raise file.error(Problem(f"{named.path} can't be read: {error.strerror}", (key,))) from None
        if named.sha256 not in ("", sha256):
            raise file.error(Problem(f"{named.path} has another sha256: {sha256}", (key,)))
        return replace(named, sha256=sha256)

    return replace(file, spec=with_files(file.spec, digest))


def training_data_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong in files of training examples, all of which are read."""
    for key in ("data", "held_out"):
        named: InputFile | None = getattr(spec.finetune, key)
        try:
            for _ in read_examples(Path(named.path)) if named else ():
                pass
        except BadTrainingData as problem:
            yield Problem(str(problem), (("finetune", key),))


def _refuse(file: JobFile, problems: Iterable[Problem | None]) -> None:
    for problem in filter(None, problems):
        raise file.error(problem)


def with_options(file: JobFile, options: SubmitOptions, toolchains: Mapping[str, ToolchainSpec]) -> JobFile:
    """Return the job file with the values of options; raises JobFileError if another key does not allow one."""
    spec = file.spec
    if options.priority is not None:
        spec = spec.model_copy(update={"priority": options.priority})
    if options.on is None:
        return replace(file, spec=spec)
    spec = spec.model_copy(update={"benchmark": spec.benchmark.model_copy(update={"on": options.on})})
    if problem := job_problem(spec, toolchains):
        keys = tuple(key for key in problem.keys if key != ("benchmark", "on")) or problem.keys
        raise file.error(Problem(f"{options.on_option}: {problem.message}", keys))
    return replace(file, spec=spec)


def _nodes(file: JobFile, options: SubmitOptions) -> Sequence[Node]:
    """Return the nodes that the job is planned for, if it is measured in certain places."""
    if file.spec.benchmark.on is BenchmarkPlacement.ANY:
        return ()
    nodes = known_nodes.up_nodes()
    if problem := places_problem(file.spec, nodes):
        raise file.error(problem) if options.on is None else BadSetting(options.on_option, problem.message)
    return nodes


def start_problem(start: str, spec: JobSpec) -> Problem | None:
    """Return why a job can't run again from a stage; raises BadSetting if there is no such stage."""
    stages = [name for name in STAGES if name in spec.stages]
    if start not in STAGES:
        raise BadSetting("--from", f"no stage is called {start!r}; its stages are {', '.join(stages)}")
    if start in stages:
        return None
    return Problem.at(
        "stages", message=f"--from {start}: the job has no stage {start}; its stages are {', '.join(stages)}"
    )


def run_again_from(start: str, planned: Plan) -> Plan:
    """Return the plan in which a stage and those that follow it run even if their outputs are in the cache."""
    order = list(STAGES)
    again = order[order.index(start) :]
    return replace(planned, tasks=tuple(replace(task, is_fresh=task.stage in again) for task in planned.tasks))


def store_job(store: Store, spec: JobSpec, model: Model, planned: Plan, cached: CacheOptions = ALL_OUTPUTS) -> str:
    """Store a job; return its id."""
    return store.submit(
        Submission(
            plan=planned,
            name=spec.name,
            spec=spec.model_dump(mode="json"),
            model=model,
            submitted_by=current_actor(),
            timeout_s=spec.timeout,
            reuse=cached.reuse,
            reuse_measurements=cached.reuse_measurements,
            priority=spec.priority,
            job_timeout_s=spec.job_timeout,
        )
    )
