"""Toolchains that a site adds to haloctl's own: rows in a YAML file, checked as a job file is.

our-rocm:                        # the name, as job files give it
  packages: [torch==2.9.*]       # requirements, as pip writes them
  stages: [numerics, benchmark]  # what runs under it; by default all that IREE's compiler and runtime matter to
  engines: [torch]               # by default iree
  over: true                     # over what haloctl is installed in (the default), or with its own packages alone
  without: [torchvision]         # what these ask for, and what is left out
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from jobs.errors import BadSetting
from jobs.fields import StageName, ToolchainName
from jobs.toolchains import OF_IREE, TOOLCHAINS, Row, is_known
from jobs.variants import Engine
from orchestrator.settings import TOOLCHAINS_VARIABLE, Settings
from orchestrator.submitting import job_file
from workers.environment import CREDENTIALS_IN_URL


def _without_secrets(requirement: object) -> object:
    if isinstance(requirement, str) and CREDENTIALS_IN_URL.search(requirement):
        raise ValueError("should have no credentials, which would be stored: ~/.netrc is the place for them")
    return requirement


Requirement = Annotated[
    str,
    BeforeValidator(_without_secrets),
    Field(pattern=r"^[A-Za-z0-9][^\n\\]*$"),  # no option of a requirements file
]

PackageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$")]


class _SiteRow(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    packages: Annotated[list[Requirement], Field(min_length=1)]
    stages: Annotated[list[StageName], Field(min_length=1)] | None = None
    engines: Annotated[list[Engine], Field(min_length=1)] = [Engine.IREE]
    over: bool = True
    without: list[PackageName] = []

    def row(self) -> Row:
        """As haloctl's own rows are."""
        stages, engines = tuple(self.stages or OF_IREE), tuple(self.engines)
        return Row(tuple(self.packages), stages, engines, is_over=self.over, without=tuple(self.without))


#: What is wrong, where pydantic says it less well.
SAID = {
    "extra_forbidden": f"is not a key of a toolchain: there are {', '.join(_SiteRow.model_fields)}",
    "missing": "is missing",
    "string_pattern_mismatch": "can't be a name or a requirement",
    "dict_type": "should be a mapping of names to packages, stages and so on",
}

_ROWS = TypeAdapter(dict[ToolchainName, _SiteRow])


def rows(settings: Settings) -> dict[str, Row]:
    """Every row there is; raises BadSetting or JobFileError for a file that can't be used."""
    return dict(TOOLCHAINS) if settings.toolchains is None else {**TOOLCHAINS, **_read(settings.toolchains)}


def _read(path: Path) -> dict[str, Row]:
    if not path.is_file():
        raise BadSetting(TOOLCHAINS_VARIABLE, f"there is no file {path}")
    lines, value = job_file.parse(path)
    try:
        found = _ROWS.validate_python(value or {})
    except ValidationError as error:
        mistakes = sorted(error.errors(include_url=False), key=lambda mistake: mistake["type"] != "extra_forbidden")
        key = tuple(part for part in mistakes[0]["loc"] if part != "[key]")
        message = SAID.get(mistakes[0]["type"], mistakes[0]["msg"].removeprefix("Value error, "))
        raise job_file.at(path, lines, key, message) from error
    for name in found:
        if is_known(name):
            raise job_file.at(path, lines, (name,), "is a toolchain of haloctl's own: give it another name")
    return {name: row.row() for name, row in found.items()}
