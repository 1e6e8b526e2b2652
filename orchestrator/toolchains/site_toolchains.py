"""Toolchains that a site adds to those of haloctl, in a YAML file that is checked like a job file.

our-rocm:                        # the name that job files use
  packages: [torch==2.9.*]       # requirements, as pip writes them
  stages: [numerics, benchmark]  # stages that run under it; by default all that depend on the engine
  engines: [torch]               # by default iree
  over: true                     # over the packages that haloctl is installed with (the default), or without them
  without: [torchvision]         # dependencies that are left out
  build: false                   # whether packages without wheels are built, which runs their code on the head
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from jobs.errors import BadSetting
from jobs.field_types import ToolchainName
from jobs.job_file.spec import StageName
from jobs.job_file.variants_section import EngineName
from jobs.masking import has_userinfo
from jobs.toolchain_table import TOOLCHAINS, is_known
from jobs.toolchains import ToolchainSpec
from jobs.variants import IREE
from orchestrator import yaml_document
from orchestrator.settings import TOOLCHAINS_VARIABLE, Settings


def _without_secrets(requirement: object) -> object:
    if isinstance(requirement, str) and has_userinfo(requirement):
        raise ValueError("should have no credentials, which would be stored; put them into ~/.netrc")
    return requirement


Requirement = Annotated[
    str,
    BeforeValidator(_without_secrets),
    Field(pattern=r"^[A-Za-z0-9][^\n\\]*$"),  # not an option of a requirements file
]

PackageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$")]


class _SiteToolchain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    packages: Annotated[list[Requirement], Field(min_length=1)]
    stages: Annotated[list[StageName], Field(min_length=1)] | None = None
    engines: Annotated[list[EngineName], Field(min_length=1)] = [IREE]
    over: bool = True
    without: list[PackageName] = []
    build: bool = False

    def to_spec(self) -> ToolchainSpec:
        """Return the specification."""
        stages = None if self.stages is None else tuple(self.stages)
        return ToolchainSpec(
            tuple(self.packages),
            stages,
            tuple(self.engines),
            is_over=self.over,
            without=tuple(self.without),
            may_build=self.build,
        )


#: Messages that are clearer than pydantic's, by type of error.
MESSAGES = {
    "extra_forbidden": f"is not a key of a toolchain: there are {', '.join(_SiteToolchain.model_fields)}",
    "missing": "is missing",
    "string_pattern_mismatch": "can't be a name or a requirement",
    "dict_type": "should be a mapping of names to packages, stages and so on",
}

_TOOLCHAINS = TypeAdapter(dict[ToolchainName, _SiteToolchain])


def read_toolchains(settings: Settings) -> dict[str, ToolchainSpec]:
    """Return all toolchains by name; raises BadSetting or JobFileError for a file that can't be used."""
    return dict(TOOLCHAINS) if settings.toolchains is None else {**TOOLCHAINS, **_read(settings.toolchains)}


def _read(path: Path) -> dict[str, ToolchainSpec]:
    if not path.is_file():
        raise BadSetting(TOOLCHAINS_VARIABLE, f"there is no file {path}")
    document = yaml_document.read(path)
    try:
        toolchains = _TOOLCHAINS.validate_python(document.value or {})
    except ValidationError as error:
        mistakes = sorted(error.errors(include_url=False), key=lambda mistake: mistake["type"] != "extra_forbidden")
        key = tuple(part for part in mistakes[0]["loc"] if part != "[key]")
        message = MESSAGES.get(mistakes[0]["type"], mistakes[0]["msg"].removeprefix("Value error, "))
        raise document.error(key, message) from error
    for name in toolchains:
        if is_known(name):
            raise document.error((name,), "is a toolchain of haloctl: choose another name")
    return {name: toolchain.to_spec() for name, toolchain in toolchains.items()}
