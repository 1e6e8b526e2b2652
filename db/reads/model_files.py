"""The files of jobs' models, as they were when the jobs were submitted."""

from collections.abc import Collection, Mapping

from sqlalchemy import select

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import parts
from jobs.stages.base import Model

ModelFiles = Mapping[str, Mapping[str, str]]  #: by the model's digest, the sha256 of each of its files by name


def model_files(database: Database, jobs: Collection[str]) -> dict[str, ModelFiles]:
    """Return the files of some jobs' models, by job."""
    columns = tables.jobs.c
    files: dict[str, ModelFiles] = {}
    with database.reading() as connection:
        for part in parts(sorted(jobs)):
            for row in connection.execute(select(columns.id, columns.model_facts).where(columns.id.in_(part))):
                files[row.id] = {model.digest: model.files for model in Model.of(row.model_facts).all}
    return files
