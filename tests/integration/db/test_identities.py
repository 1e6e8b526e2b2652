"""What attempts were made of, on real databases."""

from db.connection.engine import Database
from db.reads import identities
from db.store import Store
from jobs.digest import identity
from jobs.stages import STAGES
from tests.stored_jobs import DIGEST, TOOLCHAIN, fail, start, submit, succeed


def test_an_attempt_keeps_what_it_was_made_of(database: Database, store: Store) -> None:
    attempt = start(store, f"{submit(store)}-02")
    made = identities.attempt_identity(database, attempt.id)
    assert made.identity == identity(STAGES["compile"], attempt.settings, TOOLCHAIN, attempt.inputs)
    assert (made.stage, made.digest, made.outcome, made.ended_at) == ("compile", DIGEST, None, None)
    exported = start(store, f"{submit(store)}-01")
    kept = identities.attempt_identity(database, exported.id).identity
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
    this = identities.attempt_identity(database, start(clocked, f"{last}-01").id)
    start(clocked, f"{submit(clocked)}-01")

    earlier = identities.earlier_attempts(database, this)
    assert [made.task for made in earlier] == [f"{job}-01" for job in (third, second, first)]
    assert [made.had_succeeded(this.started_at) for made in earlier] == [False, True, True]
    assert not earlier[1].had_succeeded(earlier[1].started_at)
    assert earlier[0].failure_kind == "tool_failed"


def test_what_a_task_may_take_over_is_known(database: Database, store: Store) -> None:
    job = submit(store)
    found = identities.reuse_policy(database, f"{job}-01")
    assert found == identities.ReusePolicy(of_task=True, of_job=True, fresh_stages=frozenset({"benchmark"}))
    assert not identities.reuse_policy(database, f"{job}-05").of_task
