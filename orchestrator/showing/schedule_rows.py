"""Schedules from the command line, and as people and programs are shown them."""

import getpass
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from db.schedules import IfMissed, Run, Schedule
from jobs.errors import BadSetting
from orchestrator.leading import cron
from orchestrator.settings import Settings
from orchestrator.showing.rows import when
from orchestrator.submitting import job_file, submission

COLUMNS = ("schedule", "times", "next", "last", "job", "file", "by")
CSV_COLUMNS = (
    "name", "cron", "timezone", "if_missed", "is_paused", "next_at", "last_due_at", "last_outcome", "last_job", "file",
    "added_by", "added_at",
)  # fmt: skip
RUN_COLUMNS = ("due", "outcome", "job", "")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def made(
    file: str, expression: str, name: str | None, zone: str, if_missed: str, settings: Settings, now: datetime
) -> Schedule:
    """A schedule of a job file, checked; raises UserError."""
    name = name or Path(file).stem
    if not NAME.fullmatch(name):
        raise BadSetting("--name", f"should be of letters, digits, dots, dashes and underscores, not {name!r}")
    if if_missed not in list(IfMissed):
        raise BadSetting("--if-missed", f"should be {' or '.join(IfMissed)}, not {if_missed!r}")
    next_at = _next(expression, zone, now)
    prepared = submission.prepare(file, settings)
    return Schedule(
        name=name,
        cron=" ".join(expression.split()),
        timezone=zone,
        file=file,
        text=job_file.find(file).read_text(encoding="utf-8"),
        spec=prepared.spec.model_dump(mode="json"),
        model=prepared.model,
        if_missed=IfMissed(if_missed),
        is_paused=False,
        next_at=next_at,
        added_by=getpass.getuser(),
        added_at=now,
    )


def _next(expression: str, zone: str, now: datetime) -> datetime:
    try:
        cron.zone_called(zone)
    except ValueError as error:
        raise BadSetting("--timezone", str(error)) from error
    try:
        found = cron.next_after(expression, zone, now)
    except ValueError as error:
        raise BadSetting("--cron", str(error)) from error
    if found is None:
        raise BadSetting("--cron", f"{expression!r} never comes")
    return found


def times(found: Schedule) -> str:
    """`At 02:00 every day, Europe/Berlin`."""
    return f"{cron.in_words(found.cron)}, {found.timezone}"


def next_time(found: Schedule) -> str:
    """When it is due next, by the clocks of its own time zone."""
    if found.next_at is None:
        return "paused" if found.is_paused else "never"
    return found.next_at.astimezone(ZoneInfo(found.timezone)).strftime("%Y-%m-%d %H:%M %Z")


def as_json(found: Schedule, runs: Sequence[Run]) -> dict[str, Any]:
    """All of it, with what came of it, the latest first."""
    last = runs[0] if runs else None
    return {
        **{name: value for name, value in vars(found).items() if name != "model"},
        "if_missed": found.if_missed.value,
        "times": times(found),
        "next": next_time(found),
        "next_at": found.next_at and found.next_at.isoformat(),
        "added_at": found.added_at.isoformat(),
        "last_due_at": last and last.due_at.isoformat(),
        "last_outcome": last and last.outcome.value,
        "last_job": last and last.job,
        "runs": [_run(run) for run in runs],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        **asdict(run),
        "outcome": run.outcome.value,
        "due_at": run.due_at.isoformat(),
        "at": run.at.isoformat(),
    }


def line(found: Mapping[str, Any]) -> tuple[str, ...]:
    """One in a table."""
    last = f"{found['last_outcome']} {when(found['last_due_at'])}" if found["last_due_at"] else ""
    told = (found["name"], found["times"], found["next"], last, found["last_job"] or "", found["file"])
    return (*told, found["added_by"])


def facts(found: Schedule) -> list[str]:
    """What is to be known of one, and its job file."""
    missed = "the latest is submitted late" if found.if_missed is IfMissed.RUN else "they are skipped"
    return [
        f"schedule {found.name}: {times(found)} ({found.cron})",
        f"next {next_time(found)}; where no head led at its times, {missed}",
        f"added by {found.added_by} at {when(found.added_at.isoformat())} from {found.file}:",
        "",
        *(f"  {text}" for text in found.text.rstrip().splitlines()),
    ]


def run_line(run: Run) -> tuple[str, ...]:
    """What came of one time in a table; several that were missed in a row are one line."""
    more = f"{run.count} times; " if run.count > 1 else ""
    return (when(run.due_at.isoformat()), run.outcome.value, run.job or "", more + run.detail)
