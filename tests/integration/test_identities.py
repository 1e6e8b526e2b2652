"""What attempts were made of, on real databases."""

from alembic import command
from sqlalchemy import text

from db import identities, reports, schema
from db.engine import Database, open_database, upgrade
from db.store import Store
from db.tables import SCHEMA, VERSION_TABLE
from jobs.digest import identity
from jobs.stages import STAGES
from tests.stored_jobs import DIGEST, TOOLCHAIN, fail, start, submit, succeed

BEFORE = "0001"


def test_an_attempt_keeps_what_it_was_made_of(database: Database, store: Store) -> None:
    attempt = start(store, f"{submit(store)}-02")
    made = identities.made(database, attempt.id)
    assert made.identity == identity(STAGES["compile"], attempt.settings, TOOLCHAIN, attempt.inputs)
    assert (made.stage, made.digest, made.outcome, made.ended_at) == ("compile", DIGEST, None, None)
    exported = start(store, f"{submit(store)}-01")
    kept = identities.made(database, exported.id).identity
    assert kept is not None
    assert kept["program"] == TOOLCHAIN.programs


def test_earlier_attempts_are_those_of_the_same_stage_begun_before_newest_first(
    database: Database, clocked: Store
) -> None:
    first, second, third, last = (submit(clocked) for _ in range(4))
    for job in (first, second):
        succeed(clocked, f"{job}-01")
        succeed(clocked, f"{job}-02")
    fail(clocked, f"{third}-01")
    this = identities.made(database, start(clocked, f"{last}-01").id)
    start(clocked, f"{submit(clocked)}-01")

    earlier = identities.made_earlier(database, this)
    assert [made.task for made in earlier] == [f"{job}-01" for job in (third, second, first)]
    assert [made.had_succeeded(this.started_at) for made in earlier] == [False, True, True]
    assert not earlier[1].had_succeeded(earlier[1].started_at)
    assert earlier[0].failure_kind == "tool_failed"


def test_a_database_of_before_is_upgraded_and_its_attempts_have_no_identity(empty_url: str) -> None:
    with open_database(empty_url, create=True) as database:
        attempt = start(Store(database), f"{submit(Store(database))}-01").id
        with database.writing() as connection:  # what the schema of before could hold
            connection.execute(text("ALTER TABLE attempts DROP COLUMN identity"))
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{BEFORE}'"))
    assert upgrade(empty_url) == SCHEMA
    with open_database(empty_url, create=False) as database:
        assert identities.made(database, attempt).identity is None
        assert reports.attempt(database, attempt).id == attempt
        with database.writing() as connection:
            command.check(schema.config(connection))


def test_whether_a_job_reuses_is_known(database: Database, store: Store) -> None:
    assert identities.reuses(database, submit(store))
