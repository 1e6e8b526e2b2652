"""The job-file reference in docs/ matches the models that check job files."""

import runpy
from pathlib import Path

from jobs.job_file.spec import JobSpec
from jobs.job_file.variants_section import Exclusion, VariantsSection
from jobs.sections import BenchmarkSection

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_page_is_the_rendered_one() -> None:
    rendered = runpy.run_path(str(DOCS / "job_file_reference.py"))["render"]()
    assert (DOCS / "reference" / "job-file.md").read_text() == rendered, "run python docs/job_file_reference.py"


def test_every_key_has_a_meaning() -> None:
    sections = [JobSpec, *(type(value) for value in vars(JobSpec(name="x", model=["m"], gate={})).values())]  # type: ignore[arg-type]
    fields = [field for section in sections for field in getattr(section, "model_fields", {}).items()]
    assert [name for name, field in fields if not field.description] == []


def test_exclusions_have_the_keys_of_variants() -> None:
    assert Exclusion.model_fields.keys() - {"model"} == VariantsSection.model_fields.keys() - {"exclude"}


def test_the_old_name_of_exclusive_is_read() -> None:
    assert BenchmarkSection.model_validate({"quiet": True}).exclusive is True
