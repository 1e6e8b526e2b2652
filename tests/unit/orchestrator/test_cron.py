"""When schedules come: cron expressions, time zones and the clocks that change in them."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from db.writes.schedules import IfMissed, ScheduleOutcome
from orchestrator.leader.cron import due, next_after
from orchestrator.leader.schedules import decide

BERLIN = "Europe/Berlin"
NIGHTLY = "30 2 * * *"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def local(*when: int) -> datetime:
    year, month, day, hour, minute = when
    return datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(BERLIN)).astimezone(UTC)


def following(cron: str, at: datetime, count: int) -> list[datetime]:
    times = []
    for _ in range(count):
        next_at = next_after(cron, BERLIN, at)
        assert next_at is not None
        times.append(at := next_at)
    return times


def test_a_time_is_meant_in_its_zone_and_told_in_utc() -> None:
    assert next_after("0 2 * * *", "UTC", NOON) == datetime(2026, 11, 22, 2, tzinfo=UTC)
    assert next_after("0 2 * * *", BERLIN, NOON) == datetime(2026, 11, 22, 1, tzinfo=UTC)
    assert next_after("0 2 * * MON", "America/New_York", NOON) == datetime(2026, 11, 23, 7, tzinfo=UTC)


def test_where_clocks_go_forward_a_night_in_the_lost_hour_comes_at_its_end() -> None:
    assert following(NIGHTLY, local(2026, 3, 28, 0, 0), 3) == [
        local(2026, 3, 28, 2, 30),
        local(2026, 3, 29, 3, 0),
        local(2026, 3, 30, 2, 30),
    ]


def test_where_clocks_go_back_a_night_comes_once() -> None:
    assert following(NIGHTLY, local(2026, 10, 24, 12, 0), 2) == [local(2026, 10, 25, 2, 30), local(2026, 10, 26, 2, 30)]


def test_what_comes_every_half_hour_does_so_in_the_doubled_hour_too() -> None:
    times = following("*/30 * * * *", local(2026, 10, 25, 1, 30), 5)
    assert [later - earlier for earlier, later in pairwise(times)] == [timedelta(minutes=30)] * 4


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("", "should be minute, hour, day"),
        ("0 2 * * * *", "should be minute, hour, day"),
        ("@daily", "should be minute, hour, day"),
        ("61 * * * *", "bad minute in '61"),
        ("0 2 * * FOO", "bad day-of-week in"),
        ("0 0 31 2 *", "bad day-of-month in"),
    ],
)
def test_what_is_no_cron_expression_is_told(cron: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        next_after(cron, "UTC", NOON)


@pytest.mark.parametrize("zone", ["Berlin", "", "../etc/passwd", "/etc/localtime", "Europe"])
def test_what_is_no_time_zone_is_told(zone: str) -> None:
    with pytest.raises(ValueError, match="unknown time zone"):
        next_after(NIGHTLY, zone, NOON)


def noted(
    late: timedelta, if_missed: IfMissed = IfMissed.RUN, cron: str = "0 12 * * *"
) -> list[tuple[ScheduleOutcome, int]]:
    decisions, is_run = decide(due(cron, "UTC", NOON, NOON + late), if_missed, NOON + late)
    assert is_run == (decisions[-1].outcome is ScheduleOutcome.SUBMITTED)
    return [(decision.outcome, decision.count) for decision in decisions]


def test_of_what_was_missed_the_latest_is_run_once() -> None:
    assert noted(timedelta()) == [(ScheduleOutcome.SUBMITTED, 1)]
    assert noted(timedelta(hours=23)) == [(ScheduleOutcome.SUBMITTED, 1)]
    assert noted(timedelta(days=3, hours=1)) == [(ScheduleOutcome.MISSED, 3), (ScheduleOutcome.SUBMITTED, 1)]


def test_what_was_missed_may_be_skipped() -> None:
    assert noted(timedelta(seconds=30), IfMissed.SKIP) == [(ScheduleOutcome.SUBMITTED, 1)]
    assert noted(timedelta(hours=23), IfMissed.SKIP) == [(ScheduleOutcome.MISSED, 1)]
    assert noted(timedelta(days=3), IfMissed.SKIP) == [(ScheduleOutcome.MISSED, 3), (ScheduleOutcome.SUBMITTED, 1)]


def test_after_years_away_only_the_last_week_is_counted() -> None:
    occurrences = due("0 12 * * *", "UTC", NOON, NOON + timedelta(days=2000, hours=1))
    assert occurrences.latest == NOON + timedelta(days=2000)
    assert occurrences.missed[0] == NOON
    assert len(occurrences.missed) == 7
    assert occurrences.next == NOON + timedelta(days=2001)
