"""Jobs that are sent to the server: checked and planned as those of the command line are, a few at a time."""

from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from db.schema.actors import acting_as
from orchestrator.submission.preparation import PreparedJob, prepare_text, store_job
from orchestrator.submission.submit_options import ALL_OUTPUTS, NO_OPTIONS, CacheOptions, SubmitOptions
from orchestrator.web.access import User
from orchestrator.web.site import Site


@dataclass(frozen=True)
class SentJob:
    """The text of a job file, and what was asked for beside it."""

    text: str
    options: SubmitOptions = NO_OPTIONS
    cached: CacheOptions = ALL_OUTPUTS


async def prepare(site: Site, job: SentJob) -> PreparedJob:
    """Check and plan a job; it may name models and files in the site's readable folders alone. Raises UserError."""
    async with site.preparing:
        return await run_in_threadpool(prepare_text, job.text, site.readable, site.context.settings, job.options)


async def submit(site: Site, user: User, job: SentJob) -> tuple[str, PreparedJob]:
    """Store a job in a user's name; return its id and its plan. Raises UserError, DatabaseReadOnly."""
    prepared = await prepare(site, job)

    def store() -> str:
        with acting_as(user.name):
            return store_job(site.context.store, prepared.spec, prepared.model, prepared.plan, job.cached)

    return await run_in_threadpool(store), prepared
