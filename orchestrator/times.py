"""Times as users write and read them: in their own time zone, to the minute."""

import re
from datetime import MAXYEAR, UTC, datetime, timedelta

from jobs.errors import BadSetting

AGE = re.compile(r"([0-9]{1,9})([mhd])")
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
MAX_DURATION = timedelta(days=3650)
AGE_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def format_time(time: str) -> str:
    """Return a stored time (ISO 8601, UTC) in the local time zone, to the minute."""
    return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M")


def parse_time(text: str, now: datetime, option: str = "--since") -> datetime:
    """Parse a date or time in the local time zone, or an age before `now`; raises BadSetting that names the option."""
    age = AGE.fullmatch(text.strip())
    try:
        if age:
            return now - timedelta(**{AGE_UNITS[age[2]]: int(age[1])})
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):  # years 1 and 9999 have time zones beyond them
        expected = "is neither a date or time such as 2026-11-20 or 2026-11-20T08:00 nor an age such as 90m, 12h or 7d"
        raise BadSetting(option, f"{text!r} {expected}") from None


def parse_duration(text: str, option: str) -> timedelta:
    """Parse a length of time such as 90m, 12h or 7d; raises BadSetting that names the option."""
    age = AGE.fullmatch(text.strip())
    if age is None:
        raise BadSetting(option, f"{text!r} is no length of time such as 90m, 12h or 7d")
    length = timedelta(**{AGE_UNITS[age[2]]: int(age[1])})
    if length > MAX_DURATION:
        raise BadSetting(option, f"{text} is longer than {MAX_DURATION.days}d")
    return length


def parse_end_time(text: str, now: datetime, option: str) -> datetime:
    """Parse the end of a period, where a date includes that whole day; raises like `parse_time`."""
    time = parse_time(text, now, option)
    is_day = DAY.fullmatch(text.strip()) and time.year < MAXYEAR
    return time + timedelta(days=1) if is_day else time


def format_second(time: datetime) -> str:
    """Return a time in the local time zone, to the second."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
