"""The checks of whole job files: what a file asks for that can't be done, and the key that is to blame."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

from jobs import limits, quantizers
from jobs.compiler_flags import flag_problem
from jobs.contexts import context_for
from jobs.engines import ENGINES
from jobs.environment_variables import variable_problem
from jobs.errors import UnknownToolchain
from jobs.exporters import stages_of
from jobs.inductor_options import inductor_problem
from jobs.job_file.spec import JobSpec
from jobs.job_file.variant_checks import variant_problems
from jobs.metrics import EXACT, stage_of_metric
from jobs.models import ModelKind, ModelSource
from jobs.problems import Key, Problem
from jobs.runtime_flags import is_runtime_flag, runtime_flag_problem
from jobs.sections import FinetuneOptions, ProgramSection
from jobs.stages import STAGES
from jobs.stages.base import Model
from jobs.stages.shark_export import SHARKTANK
from jobs.targets import TARGETS
from jobs.task import Node
from jobs.toolchain_table import find_toolchain, stages_of_toolchain, toolchain_for
from jobs.toolchains import DEFAULT, ToolchainSpec
from jobs.variants import HALOCTL, IREE, QUANTIZED, UNTUNED, BenchmarkPlacement, Variant, is_quantized, pin_variants

Specs = Mapping[str, ToolchainSpec]

PAGED_STAGES = ("serve", "evaluate")
MAX_ENTRIES = 3  #: processes that time one workload: a prefill, a decode step, and whole generations


def _cells(spec: JobSpec, toolchains: Specs) -> Problem | None:
    models, combinations, stages = len(spec.model), spec.variants.combinations, len(spec.stages)
    cells = models * combinations * stages
    if cells <= limits.MAX_CELLS:
        return None
    message = (
        f"{combinations} combinations of {models} models in {stages} stages are {cells} cells, and a job has at most "
        f"{limits.MAX_CELLS}: split it into several jobs"
    )
    return Problem(message, (("variants",), ("model",), ("stages",)))


def _workloads(spec: JobSpec, toolchains: Specs) -> Problem | None:
    workload, benchmark = spec.workload, spec.benchmark
    workloads = len(workload.batch) * len(workload.prompt_tokens)
    runs = workloads * benchmark.processes  # of one entry
    repetitions = runs * (benchmark.warmup + benchmark.repetitions)
    steps = (repetitions + runs * benchmark.generations) * workload.new_tokens
    processes = runs * MAX_ENTRIES
    of_job = processes * len(spec.model) * spec.variants.combinations if "benchmark" in spec.stages else 0
    at_workload: tuple[Key, ...] = (("workload", "batch"), ("workload", "prompt_tokens"))
    at_processes: tuple[Key, ...] = (("benchmark", "processes"), *at_workload)
    at_repetitions: tuple[Key, ...] = (("benchmark", "repetitions"), *at_processes)
    return (
        _excess(workloads, limits.MAX_WORKLOADS, "workloads (batch sizes times prompt lengths)", at_workload)
        or _excess(processes, limits.MAX_COMMANDS, "processes of one benchmark", at_processes)
        or _excess(of_job, limits.MAX_COMMANDS_OF_JOB, "processes of all benchmarks", (*at_processes, ("variants",)))
        or _excess(repetitions, limits.MAX_SAMPLES, "repetitions of one benchmark", at_repetitions)
        or _excess(steps, limits.MAX_STEPS, "steps of one benchmark", (("workload", "new_tokens"), *at_repetitions))
    )


def _excess(count: int, limit: int, what: str, keys: tuple[Key, ...]) -> Problem | None:
    if count <= limit:
        return None
    return Problem(f"{count} {what} are more than {limit}: split the job into several", keys)


def _revision(spec: JobSpec, toolchains: Specs) -> Problem | None:
    if spec.revision is None or len(spec.model) == 1:
        return None
    return Problem.at("revision", message="is for a job with one model")


def _known_toolchains(spec: JobSpec, toolchains: Specs) -> Problem | None:
    named: dict[Key, str | None] = {
        **{("variants", "toolchain", index): name for index, name in enumerate(spec.variants.toolchain)},
        **{
            ("variants", "exclude", index, "toolchain"): rule.toolchain
            for index, rule in enumerate(spec.variants.exclude)
        },
    }
    for key, name in named.items():
        try:
            find_toolchain(name or DEFAULT, toolchains)
        except UnknownToolchain as error:
            return Problem(str(error), (key,))
    return None


def _variables(spec: JobSpec, toolchains: Specs) -> Problem | None:
    places: list[tuple[Key, Mapping[str, str]]] = [(("env",), spec.env)]
    places += [(("variants", "env", name), variables) for name, variables in spec.variants.env.items()]
    for key, variables in places:
        for name, value in variables.items():
            if reason := variable_problem(name, value):
                return Problem((f"{name}: {reason}"), ((*key, name), key, key[:2]))
    return None


def _variants(spec: JobSpec, toolchains: Specs) -> Problem | None:
    return next(chain.from_iterable(map(variant_problems, spec.variants.unnamed)), None)


def _stages(spec: JobSpec, toolchains: Specs) -> Problem | None:
    for engine in spec.variants.engine:
        able = ENGINES[engine].stages
        wanted = [able[stage] for stage in spec.stages if stage in able]
        if not wanted:
            return Problem.at("stages", message=f"the engine {engine} has none of them; it has {', '.join(able)}")
        for stage in wanted:
            for need in stage.needs:
                if need not in spec.stages:
                    return Problem.at("stages", message=f"{stage.name} needs {need}, which is not among the stages")
    return None


def _serving(spec: JobSpec, toolchains: Specs) -> Problem | None:
    if "serve" not in spec.stages:
        return None
    serve, new_tokens = spec.serve, spec.workload.new_tokens
    loads = sum(serve.concurrency) + max(serve.concurrency) * (len(serve.rates) + serve.offline)
    requests = loads * serve.requests * serve.rounds * len(spec.workload.prompt_tokens)
    at_load: tuple[Key, ...] = (("serve", "requests"), ("serve", "rounds"), ("serve", "concurrency"), ("serve",))
    return _excess(requests, limits.MAX_SAMPLES, "requests of one server", at_load) or _excess(
        requests * new_tokens, limits.MAX_STEPS, "tokens of one server", (("workload", "new_tokens"), *at_load)
    )


def _paged(spec: JobSpec, toolchains: Specs) -> Problem | None:
    """Stages that compute as a server does need what a server calls."""
    stages = [stage for stage in PAGED_STAGES if stage in spec.stages]
    for stage in stages:
        ways = [(variant, stages_of(variant).get(stage)) for variant in spec.variants.unnamed]
        if any(way for _, way in ways) and not any(way and way.applies_to(variant) for variant, way in ways):
            message = f"the stage {stage} needs programs with `kv_cache: paged`, and no variant has that"
            return Problem(message, (("variants", "kv_cache"), ("stages",)))
    return _pool(spec) if stages else None


def _pool(spec: JobSpec) -> Problem | None:
    """A pool holds the rows of the workload at full length, and the block that is nobody's."""
    workload, blocks = spec.workload, spec.serve.kv_pool_blocks
    row = context_for(workload.cache_tokens, workload.kv_block_tokens) // workload.kv_block_tokens
    needed = max(workload.batch) * row + 1
    if blocks is None or blocks >= needed:
        return None
    message = f"a batch of {max(workload.batch)} rows of the workload needs {needed} blocks"
    return Problem.at("serve", "kv_pool_blocks", message=message)


def _finetune(spec: JobSpec, toolchains: Specs) -> Problem | None:
    sections: list[tuple[Key, FinetuneOptions]] = [(("finetune",), spec.finetune)]
    sections += [(("variants", "finetune", name), options) for name, options in _tuned(spec)]
    for key, section in sections:
        if section.steps is not None and section.epochs is not None:
            return Problem("give either steps or epochs", ((*key, "epochs"), key, key[:2]))
    if not _tuned(spec):
        return None
    if "finetune" not in spec.stages:
        message = "needs the stage finetune, which is not among the stages"
        return Problem(message, (("variants", "finetune"), ("finetune",), ("stages",)))
    if spec.finetune.data is None:
        message = "is missing: give a text, or a .jsonl of examples"
        return Problem(f"finetune.data: {message}", (("finetune",), ("variants", "finetune")))
    return None


def _tuned(spec: JobSpec) -> list[tuple[str, FinetuneOptions]]:
    return [(name, options) for name, options in spec.variants.finetune.items() if name != UNTUNED]


def _gate(spec: JobSpec, toolchains: Specs) -> Problem | None:
    for metric in spec.gate.metrics if spec.gate else ():
        if (stage := stage_of_metric(metric)) not in spec.stages:
            message = f"{metric} needs the stage {stage}, which is not among the stages"
            return Problem(message, (("gate", "metrics"), ("gate",)))
        if spec.gate and spec.gate.against == "target" and metric in EXACT:
            message = f"{metric} is compared with other programs, and no target is one: use last-good or toolchain:NAME"
            return Problem(message, (("gate", "against"), ("gate", "metrics"), ("gate",)))
    return None


def _quantizer_options(spec: JobSpec, toolchains: Specs) -> Problem | None:
    problems = (quantizers.option_problems(name, options) for name, options in spec.quantize.options.items())
    return next(chain.from_iterable(problems), None)


def _quantize(spec: JobSpec, toolchains: Specs) -> Problem | None:
    section = spec.quantize
    return quantizers.section_problem(spec.variants.unnamed, section.granularity, section.inputs, section.options)


def _torch(spec: JobSpec, toolchains: Specs) -> Problem | None:
    engines = [ENGINES[variant.engine] for variant in spec.variants.unnamed]
    for key in sorted(spec.torch.model_fields_set):
        if not any(key in engine.torch_options for engine in engines):
            able = ", ".join(name for name, engine in ENGINES.items() if key in engine.torch_options)
            message = f"is an option of the engines {able}, and no variant has one of them"
            return Problem.at("torch", key, message=message)
    if spec.torch.tunable_op and all(TARGETS[name].torch_device == "cpu" for name in spec.variants.target):
        return Problem.at("torch", "tunable_op", message="chooses among the kernels of a GPU, and no target is one")
    return None


def _sharktank(spec: JobSpec, toolchains: Specs) -> Problem | None:
    section = spec.sharktank
    is_used = any(variant.exporter == SHARKTANK for variant in spec.variants.unnamed)
    for key in sorted(section.model_fields_set) if not is_used else ():
        message = "is an option of the exporter sharktank, and no variant has it"
        return Problem.at("sharktank", key, message=message)
    batches = section.batches(spec.workload)
    if batches and not set(batches["bs_prefill"]) & set(batches["bs_decode"]):
        message = "prefill and decode need a batch size that both have, of which numerics is"
        return Problem(message, (("sharktank", "bs_prefill"), ("sharktank", "bs_decode")))
    return None


def _where(spec: JobSpec, toolchains: Specs) -> Problem | None:
    if spec.numerics.where is None:
        return None
    if "numerics" not in spec.stages:
        message = "needs the stage numerics, which is not among the stages"
        return Problem(message, (("numerics", "where"), ("stages",)))
    if not any((variant.engine, variant.exporter) == (IREE, HALOCTL) for variant in spec.variants.unnamed):
        message = "is for programs of the engine iree and the exporter haloctl, and no variant is one"
        return Problem.at("numerics", "where", message=message)
    return None


def _inductor(spec: JobSpec, toolchains: Specs) -> Problem | None:
    for name, value in spec.torch.inductor.items():
        if reason := inductor_problem(name, value):
            return Problem.at("torch", "inductor", name, message=reason)
    return None


def _toolchains(spec: JobSpec, toolchains: Specs) -> Problem | None:
    for variant in spec.variants.unnamed:
        name, engine = variant.toolchain, variant.engine
        stages = [stage for stage in spec.stages if stage in ENGINES[engine].stages]
        if name != DEFAULT and name not in (toolchain_for(name, stage, engine, toolchains) for stage in stages):
            row = find_toolchain(name, toolchains)
            able = f"{', '.join(stages_of_toolchain(row))} of the engine {', '.join(row.engines)}"
            message = f"{name} is for {able}, and the job has none of these stages"
            return Problem.of_variant(variant, "toolchain", "engine", message=message)
    return None


def _placement(spec: JobSpec, toolchains: Specs) -> Problem | None:
    on = spec.benchmark.on
    if on is BenchmarkPlacement.ANY:
        return None
    if "benchmark" not in spec.stages:
        message = f"{on} needs the stage benchmark, which is not among the stages"
        return Problem(message, (("benchmark", "on"), ("stages",)))
    variants = spec.variants.unnamed
    if spanning := next((variant for variant in variants if variant.nodes > 1), None):
        message = f"{on} is for variants on one node, and nodes {spanning.nodes} spans several"
        return Problem(message, (("benchmark", "on"), ("variants", "nodes")))
    wide = next((variant for variant in variants if variant.device_count > 1), None)
    if on is BenchmarkPlacement.EACH_DEVICE and wide:
        message = f"{on} is for variants on one device, and {_split(wide)} takes {wide.device_count}: use each_node"
        return Problem(message, (("benchmark", "on"), ("variants", "tp")))
    return None


def _split(variant: Variant) -> str:
    return f"tp {variant.tp}" if variant.pp == 1 else f"tp {variant.tp} with pp {variant.pp}"


#: The checks of a job file by itself, in the order in which problems are reported.
JOB_CHECKS: tuple[Callable[[JobSpec, Specs], Problem | None], ...] = (
    _cells,  # before any check that expands the variants
    _workloads,
    _revision,
    _variables,
    _variants,
    _known_toolchains,
    _stages,
    _paged,
    _finetune,
    _serving,
    _gate,
    _quantizer_options,
    _quantize,
    _placement,
    _torch,
    _sharktank,
    _where,
    _inductor,
    _toolchains,
)


def extent_problem(spec: JobSpec) -> Problem | None:
    """Return why a job is too large to be expanded."""
    return _cells(spec, {}) or _workloads(spec, {})


def job_problem(spec: JobSpec, toolchains: Specs) -> Problem | None:
    """Return the first problem of a job file by itself."""
    return next((problem for check in JOB_CHECKS if (problem := check(spec, toolchains))), None)


def flags_problem(spec: JobSpec, site_flags: Collection[str]) -> Problem | None:
    """Return the first flag that a job file can't set; `site_flags` are names of the compiler's that a site allows."""

    def problem_of_either(flag: str) -> str | None:
        name = flag.partition("=")[0]
        is_for_runtime = is_runtime_flag(flag) or (
            "_" in name and name not in site_flags
        )  # as the runtime's are spelled
        return runtime_flag_problem(flag) if is_for_runtime else problem_of_compiler(flag)

    def problem_of_compiler(flag: str) -> str | None:
        return flag_problem(flag, site_flags)

    places: list[tuple[Key, Sequence[str], Callable[[str], str | None]]] = [
        (("compile", "flags"), spec.compile.flags, problem_of_compiler),
        (("benchmark", "flags"), spec.benchmark.flags, runtime_flag_problem),
        *((("variants", "flags", name), flags, problem_of_either) for name, flags in spec.variants.flags.items()),
    ]
    for key, flags, problem_of in places:
        for index, flag in enumerate(flags):
            if reason := problem_of(flag):
                return Problem.at(*key, index, message=reason)
    return None


def installation_problem(spec: JobSpec, installed: Mapping[str, str], toolchains: Specs) -> Problem | None:
    """Return why an engine is not available; `installed` has the versions of the default toolchain's packages."""
    for variant in spec.variants.unnamed:
        engine = ENGINES[variant.engine]
        stages = (toolchain_for(variant.toolchain, stage, variant.engine, toolchains) for stage in engine.stages)
        if engine.packages and set(stages) == {DEFAULT} and not installed.keys() & set(engine.packages):
            message = f"{variant.engine} is not installed with haloctl: {engine.install_hint}"
            return Problem(message, (("variants", "engine"),))
    return None


def program_problem(spec: JobSpec, sources: Sequence[ModelSource]) -> Problem | None:
    """Return why the section `program` means nothing for a job."""
    if spec.program == ProgramSection() or any(source.kind is ModelKind.PROGRAM for source in sources):
        return None
    message = "is for models that are programs, and no model is one"
    return Problem.at("program", message=message)


def weights_problem(spec: JobSpec, source: ModelSource) -> Problem | None:
    """Return why a model without weights can't run the job's stages."""
    wanting = [stage for stage in spec.stages if STAGES[stage].needs_weights]
    if source.has_weights or not wanting:
        return None
    able = ", ".join(name for name, stage in STAGES.items() if not stage.needs_weights)
    message = f"{source.text} has no weights, which {', '.join(wanting)} need; a shape's stages are {able}"
    return Problem(message, (("stages",), ("model",)))


def quantization_problem(spec: JobSpec, model: Model) -> Problem | None:
    """Return why low-precision variants of a model have no quantized weights."""
    is_ready = model.is_quantized or model.is_program or not model.has_weights
    if "quantize" in spec.stages or "export" not in spec.stages or is_ready:
        return None
    variant = next(filter(is_quantized, spec.variants.unnamed), None)
    if variant is None:
        return None
    what = variant.precision if variant.precision in QUANTIZED else f"a KV cache in {variant.kv_precision}"
    message = f"{what} needs quantize, which is not among the stages, or a model that is quantized already"
    return Problem.at("stages", message=message)


def training_problem(spec: JobSpec, model: Model) -> Problem | None:
    """Return why a model can't be trained."""
    if not _tuned(spec) or not model.is_quantized:
        return None
    message = f"{model.text} has weights in low precision, which can't be trained: give the model that they are of"
    return Problem(message, (("variants", "finetune"), ("finetune",)))


def places_problem(spec: JobSpec, nodes: Sequence[Node]) -> Problem | None:
    """Return the target that the job can't be measured for on each of these nodes, because none has the devices."""
    on = spec.benchmark.on
    lacking = next((variant for variant in spec.variants.unnamed if not list(pin_variants([variant], on, nodes))), None)
    if on is BenchmarkPlacement.ANY or lacking is None:
        return None
    message = f"no node that is up has {lacking.device_count} x {lacking.target}; `haloctl nodes` lists their devices"
    return Problem(message, (("benchmark", "on"), ("variants", "target")))
