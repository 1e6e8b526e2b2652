"""Cron expressions in a time zone. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

FIELDS = 5  #: CronSim takes a sixth, seconds
EXPECTED = "should be minute, hour, day, month and weekday, such as '0 2 * * *' or '30 1 * * MON-FRI'"
COUNTED = timedelta(days=7)  #: times before that are not counted one by one


@dataclass(frozen=True)
class Due:
    """The times of a schedule up to now, and the next one."""

    latest: datetime
    missed: tuple[datetime, ...]  #: before the latest; of those long ago only the first
    next: datetime | None  #: None: there is none


def get_time_zone(name: str) -> ZoneInfo:
    """Return a time zone by its name. Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"unknown time zone {name!r}: use a name such as UTC, Europe/Berlin or America/New_York"
        ) from error


def next_after(cron: str, zone: str, at: datetime) -> datetime | None:
    """Return the next time in UTC, None if there is none. Raises ValueError for an invalid expression.

    When clocks go forward, a time in the lost hour moves to its end; when they go back it comes once, as in Debian's
    cron.
    """
    return next(_times(cron, zone, at), None)


def in_words(cron: str) -> str:
    """Describe an expression, as `At 02:00 every day`."""
    return str(CronSim(cron, datetime.now(UTC)).explain())


def due(cron: str, zone: str, next_at: datetime, now: datetime) -> Due:
    """Return the times since `next_at`, which has passed."""
    later = _times(cron, zone, max(next_at, now - COUNTED))
    passed = list(chain([next_at], takewhile(lambda time: time <= now, later)))
    return Due(passed[-1], tuple(passed[:-1]), next_after(cron, zone, now))


def _times(cron: str, zone: str, at: datetime) -> Iterator[datetime]:
    if len(cron.split()) != FIELDS:
        raise ValueError(f"{EXPECTED}, not {cron!r}")
    try:
        return (time.astimezone(UTC) for time in CronSim(cron, at.astimezone(get_time_zone(zone))))
    except CronSimError as error:
        raise ValueError(f"{str(error).lower()} in {cron!r}; it {EXPECTED}") from error
