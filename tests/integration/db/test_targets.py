"""Quoted targets as real databases keep them."""

from datetime import timedelta

from db.connection.engine import Database
from db.writes.targets import in_force, keep, quoted_targets, remove
from tests.stored_jobs import NOON
from tests.unit.orchestrator.test_target_files import quoted


def test_what_is_recorded_again_is_one_row_and_what_changes_is_history(database: Database) -> None:
    later = NOON + timedelta(days=1)
    assert keep(database, [quoted(10.0), quoted(9.0, batch=4)]) == 2
    assert keep(database, [quoted(10.0), quoted(10.0, since=later)]) == 0
    assert keep(database, [quoted(8.0, since=later), quoted(9.5, batch=4)]) == 2
    found = quoted_targets(database)
    assert found == [quoted(10.0), quoted(9.5, batch=4), quoted(8.0, since=later)]
    assert [one.value for one in in_force(found)] == [8.0, 9.5]


def test_a_target_is_removed_by_exactly_what_it_was_recorded_for(database: Database) -> None:
    keep(database, [quoted(), quoted(2.0, since=NOON + timedelta(1)), quoted(batch=4), quoted(target="mi300x")])
    name = quoted().variant
    assert remove(database, variant=name, metric="itl_ms", target="", prompt_tokens=5) == 0
    assert remove(database, variant=name, metric="itl_ms", target="") == 2
    assert quoted_targets(database) == [quoted(batch=4), quoted(target="mi300x")]
