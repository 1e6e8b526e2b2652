"""Times that come again: cron expressions in a time zone. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

FIELDS = 5  #: CronSim takes a sixth, seconds
EXPECTED = "should be minute, hour, day, month and weekday, such as '0 2 * * *' or '30 1 * * MON-FRI'"
COUNTED = timedelta(days=7)  #: what was due earlier is not counted one by one


@dataclass(frozen=True)
class Due:
    """What of a schedule was due, up to now."""

    latest: datetime
    missed: tuple[datetime, ...]  #: before that; of what is long ago the first alone
    next: datetime | None  #: none: it never comes again


def zone_called(name: str) -> ZoneInfo:
    """A time zone; raises ValueError."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"no time zone is called {name!r}; there are UTC, Europe/Berlin, America/New_York, ..."
        ) from error


def next_after(cron: str, zone: str, at: datetime) -> datetime | None:
    """When it comes next, in UTC; None if it never does. Raises ValueError for what is no such expression.

    Where clocks go forward, what would be in the lost hour comes at its end; where they go back it comes once, as
    Debian's cron has it.
    """
    return next(_times(cron, zone, at), None)


def in_words(cron: str) -> str:
    """`At 02:00 every day`."""
    return str(CronSim(cron, datetime.now(UTC)).explain())


def due(cron: str, zone: str, next_at: datetime, now: datetime) -> Due:
    """What has come since `next_at`, which has."""
    later = _times(cron, zone, max(next_at, now - COUNTED))
    come = list(chain([next_at], takewhile(lambda time: time <= now, later)))
    return Due(come[-1], tuple(come[:-1]), next_after(cron, zone, now))


def _times(cron: str, zone: str, at: datetime) -> Iterator[datetime]:
    if len(cron.split()) != FIELDS:
        raise ValueError(f"{EXPECTED}, not {cron!r}")
    try:
        return (time.astimezone(UTC) for time in CronSim(cron, at.astimezone(zone_called(zone))))
    except CronSimError as error:
        raise ValueError(f"{str(error).lower()} in {cron!r}; it {EXPECTED}") from error
