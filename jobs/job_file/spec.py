"""The job file: its keys with their types, defaults and meanings. Unknown keys are refused."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from jobs import limits
from jobs.field_types import (
    AllowedNames,
    EnvironmentVariables,
    ModelName,
    OneOrMore,
    OverrideKey,
    OverrideValue,
    Priority,
    Seconds,
    Section,
    Text,
    distinct,
    expect_small,
    visible,
)
from jobs.job_file.variants_section import VariantsSection
from jobs.sections import (
    BenchmarkSection,
    CompileSection,
    EvaluateSection,
    FinetuneSection,
    GateSection,
    NumericsSection,
    ProgramSection,
    QuantizeSection,
    ServeSection,
    SharktankSection,
    TorchSection,
    WorkloadSection,
)
from jobs.stages import STAGES

STAGE_NAMES = AllowedNames(lambda: STAGES)
StageName = Annotated[str, AfterValidator(STAGE_NAMES.validate), STAGE_NAMES]


def _default_stages() -> list[str]:
    return [name for name, stage in STAGES.items() if stage.is_default]


class JobSpec(Section):
    """One job file."""

    name: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(visible)]
    """Name of the job in lists and reports."""
    model: Annotated[OneOrMore[ModelName], Field(max_length=limits.MAX_MODELS)]
    """Model or models: the name of a shipped model, a folder in Hugging Face layout, a hub id, or `shape:` and the name
    of a config without weights, such as `shape:llama3.1-70b`; or a program that haloctl did not make: a file whose name
    ends in .mlir, .mlirbc, .onnx or .vmfb."""
    revision: Text | None = None
    """Branch, tag or commit of a hub model; by default its main branch."""
    overrides: Annotated[
        dict[OverrideKey, OverrideValue], Field(max_length=limits.MAX_VALUES), AfterValidator(expect_small)
    ] = {}
    """Values that replace those of the model's config.json, such as `{num_hidden_layers: 4}`."""
    env: EnvironmentVariables = {}
    """Environment variables of the job's stages, such as `{HSA_ENABLE_SDMA: 0}`. Outputs are reused only under the same
    variables that may change them; measurements record those that may change speed, too."""
    variants: VariantsSection = VariantsSection()
    """Axes of the job's matrix."""
    stages: Annotated[list[StageName], Field(min_length=1), AfterValidator(distinct)] = Field(
        default_factory=_default_stages
    )
    """Stages to run; their order in the list does not matter."""
    workload: WorkloadSection = WorkloadSection()
    """Batch sizes and lengths."""
    finetune: FinetuneSection = FinetuneSection()
    """Options of the stage `finetune`; where the section is there, and no axis `finetune`, every variant is trained."""
    quantize: QuantizeSection = QuantizeSection()
    """Options of the stage `quantize`."""
    compile: CompileSection = CompileSection()
    """Options of the stage `compile`."""
    sharktank: SharktankSection = SharktankSection()
    """Options of the exporter `sharktank`."""
    torch: TorchSection = TorchSection()
    """Options of the torch engines."""
    program: ProgramSection = ProgramSection()
    """How models that are programs are called."""
    numerics: NumericsSection = NumericsSection()
    """Options of the stage `numerics`."""
    evaluate: EvaluateSection = EvaluateSection()
    """Options of the stages `reference` and `evaluate`."""
    benchmark: BenchmarkSection = BenchmarkSection()
    """Options of the stage `benchmark`."""
    serve: ServeSection = ServeSection()
    """Options of the stage `serve`."""
    gate: GateSection | None = None
    """Performance gate; without it a cell passes whatever its timings are."""
    timeout: Seconds = 1800.0
    """Time limit of one attempt of a task, such as `90s`, `30m` or `1h30m`."""
    job_timeout: Seconds | None = None
    """Time limit of the whole job from its submission; by default it has none."""
    priority: Priority = 0
    """Jobs with higher priority are scheduled first."""

    @model_validator(mode="before")
    @classmethod
    def _finetune_every_variant(cls, values: Any) -> Any:
        """Name the way of a section `finetune` after its method, where no axis names any."""
        section, variants = (
            (values.get(key) for key in ("finetune", "variants")) if isinstance(values, dict) else (0, 0)
        )
        if not isinstance(section, dict) or not isinstance(variants, dict | None) or "finetune" in (variants or {}):
            return values
        return {**values, "variants": {**(variants or {}), "finetune": {str(section.get("method", "lora")): {}}}}
