"""Schedules: built from the command line, and as JSON objects, tables and text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from db.schema.actors import current_actor
from db.writes.schedules import IfMissed, Schedule, ScheduleRun
from jobs.errors import BadSetting
from orchestrator.leader import cron
from orchestrator.settings import Settings
from orchestrator.submission import job_file, preparation
from orchestrator.tables import TextTable
from orchestrator.times import format_time

CSV_COLUMNS = (
    "name", "cron", "timezone", "if_missed", "is_paused", "next_at", "last_due_at", "last_outcome", "last_job", "file",
    "added_by", "added_at",
)  # fmt: skip
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def build_schedule(
    file: str, expression: str, name: str | None, zone: str, if_missed: str, settings: Settings, now: datetime
) -> Schedule:
    """Build a schedule from a checked job file; raises UserError."""
    name = name or Path(file).stem
    if not NAME.fullmatch(name):
        raise BadSetting("--name", f"should consist of letters, digits, dots, dashes and underscores, not {name!r}")
    if if_missed not in list(IfMissed):
        raise BadSetting("--if-missed", f"should be {' or '.join(IfMissed)}, not {if_missed!r}")
    next_at = _next_time(expression, zone, now)
    prepared = preparation.prepare(file, settings)
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
        added_by=current_actor(),
        added_at=now,
    )


def _next_time(expression: str, zone: str, now: datetime) -> datetime:
    try:
        cron.get_time_zone(zone)
    except ValueError as error:
        raise BadSetting("--timezone", str(error)) from error
    try:
        next_at = cron.next_after(expression, zone, now)
    except ValueError as error:
        raise BadSetting("--cron", str(error)) from error
    if next_at is None:
        raise BadSetting("--cron", f"{expression!r} never occurs")
    return next_at


def format_cron(schedule: Schedule) -> str:
    """Return `At 02:00 every day, Europe/Berlin`."""
    return f"{cron.in_words(schedule.cron)}, {schedule.timezone}"


def format_next_time(schedule: Schedule) -> str:
    """Return when a schedule is due next, in its own time zone."""
    if schedule.next_at is None:
        return "paused" if schedule.is_paused else "never"
    return schedule.next_at.astimezone(ZoneInfo(schedule.timezone)).strftime("%Y-%m-%d %H:%M %Z")


def to_json(schedule: Schedule, runs: Sequence[ScheduleRun]) -> dict[str, Any]:
    """Return a schedule with its runs, latest first."""
    last = runs[0] if runs else None
    return {
        **{name: value for name, value in vars(schedule).items() if name != "model"},
        "if_missed": schedule.if_missed.value,
        "times": format_cron(schedule),
        "next": format_next_time(schedule),
        "next_at": schedule.next_at and schedule.next_at.isoformat(),
        "added_at": schedule.added_at.isoformat(),
        "last_due_at": last and last.due_at.isoformat(),
        "last_outcome": last and last.outcome.value,
        "last_job": last and last.job,
        "runs": [
            {
                **asdict(run),
                "outcome": run.outcome.value,
                "due_at": run.due_at.isoformat(),
                "at": run.at.isoformat(),
            }
            for run in runs
        ],
    }


def build_table(schedules: Sequence[Mapping[str, Any]]) -> TextTable:
    """Return a table of schedules in JSON."""
    rows = [
        (
            *(schedule["name"], schedule["times"], schedule["next"]),
            f"{schedule['last_outcome']} {format_time(schedule['last_due_at'])}" if schedule["last_due_at"] else "",
            *(schedule["last_job"] or "", schedule["file"], schedule["added_by"]),
        )
        for schedule in schedules
    ]
    return TextTable(("schedule", "times", "next", "last", "job", "file", "by"), rows)


def build_run_table(runs: Sequence[ScheduleRun]) -> TextTable:
    """Return a table of runs, where consecutive missed times are one row."""
    rows = [
        (
            *(format_time(run.due_at.isoformat()), run.outcome.value, run.job or ""),
            f"{run.count} times; {run.detail}" if run.count > 1 else run.detail,
        )
        for run in runs
    ]
    return TextTable(("due", "outcome", "job", ""), rows)


def describe(schedule: Schedule) -> list[str]:
    """Return the lines that describe a schedule, with its job file."""
    missed = "the latest is submitted late" if schedule.if_missed is IfMissed.RUN else "all are skipped"
    return [
        f"schedule {schedule.name}: {format_cron(schedule)} ({schedule.cron})",
        f"next {format_next_time(schedule)}; of times without a head, {missed}",
        f"added by {schedule.added_by} at {format_time(schedule.added_at.isoformat())} from {schedule.file}:",
        "",
        *(f"  {line}" for line in schedule.text.rstrip().splitlines()),
    ]
