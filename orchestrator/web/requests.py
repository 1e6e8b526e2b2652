"""What users ask to be done to jobs and tasks: cancelled, and run again."""

from starlette.exceptions import HTTPException

from db.reads import reports
from db.schema.actors import acting_as
from db.schema.ids import job_of
from db.writes.tokens import Role
from orchestrator.web.access import User
from orchestrator.web.site import Site


def cancel(site: Site, user: User, name: str) -> list[str]:
    """Cancel a job or a task; return the tasks. Raises NotFound, AmbiguousId, NothingToDo, HTTPException 403."""
    full_name = _expect_own(site, user, name)
    with acting_as(user.name):
        return site.context.store.request_cancel(full_name)


def retry(site: Site, user: User, name: str) -> list[str]:
    """Queue what failed of a job or a task again; return the tasks. Raises what `cancel` raises."""
    full_name = _expect_own(site, user, name)
    with acting_as(user.name):
        return site.context.store.retry(full_name)


def _expect_own(site: Site, user: User, name: str) -> str:
    """Return the whole id of a job or a task that a user may change."""
    is_task = "-" in name
    full_name = (reports.task if is_task else reports.job)(site.database, name).id
    owner = reports.job(site.database, job_of(full_name) if is_task else full_name).submitted_by
    if not user.role.includes(Role.ADMIN) and owner != user.name:
        raise HTTPException(403, f"{full_name} is {owner}'s: this takes {owner} or an admin")
    return full_name
