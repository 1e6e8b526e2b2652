"""What schema 0007 renamed: columns, stored values and JSON keys, each old name with its new one.

Read by the migration, by the import of databases that schema 0006 exported, and by the views, which keep the old names
of columns for one release.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import JSON, Connection, Integer, String, Text, cast, column, or_, select, table, text, update

from jobs.hashing import digest_of

OLD_SCHEMA = "0006"
AT_ONCE = 500  #: rows in memory

#: By table, in their order: the columns that got another name.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "tasks": {
        "asked_epoch": "base_epoch",
        "likeness": "duration_key",
        "is_stuck": "is_unschedulable",
        "lost": "lost_artifacts",
    },
    "events": {"was": "from_state", "became": "to_state"},
    "durations": {"likeness": "duration_key"},
    "terms": {"began_at": "started_at"},
    "nodes": {
        "seen_at": "last_seen_at",
        "closed": "cordon",
        "closed_why": "cordon_reason",
        "closed_at": "cordoned_at",
        "refuses_why": "not_ready_reason",
    },
    "devices": {"quarantined_why": "quarantine_reason"},
    "toolchains": {"is_over": "is_overlay"},
}

#: By table: the columns that later schemas added.
ADDED: Mapping[str, frozenset[str]] = {
    "cells": frozenset({"finetune", "flags", "env"}),
    "events": frozenset({"actor", "database_user"}),
    "attempts": frozenset({"duration_s"}),
    "nodes": frozenset({"cordoned_after"}),
    "devices": frozenset({"quarantined_after"}),
}

ADDED_TABLES = frozenset({"changes"})  #: that later schemas added

FAILURE_KINDS = {"handed_back": "requeued", "unsure": "inconclusive"}
CORDONS = {"handing_back": "requeuing"}

RESOURCES = {"is_quiet": "is_exclusive"}  #: keys of `tasks.resources`
SETTINGS = {"maker": "quantizer"}  #: keys of the settings of quantize tasks, in identities too
BENCHMARK = {"quiet": "exclusive"}  #: keys of a job file's section `benchmark`

#: Keys at any depth of measurements' contexts.
CONTEXT = {
    "cpu_throttles": "cpu_thermal_throttles",
    "foreign_percent_of_worst_spell": "peak_foreign_cpu_percent",
    "strangers": "foreign_processes",
    "slowed_by_heat": "thermal_throttle_share",
    "slowed_by_power": "power_throttle_share",
    "is_slowed_by_heat": "is_thermal_throttled",
}

#: Of events whose detail begins with the kind of a failure.
RENAMED_DETAIL = (
    "UPDATE events SET detail = :new || substr(detail, length(:old) + 1) WHERE substr(detail, 1, length(:old)) = :old"
)

Json = dict[str, Any]


def rename_columns(connection: Connection) -> None:
    """Rename the columns; indexes and keys follow."""
    for name, columns in COLUMNS.items():
        for old, new in columns.items():
            connection.execute(text(f"ALTER TABLE {name} RENAME COLUMN {old} TO {new}"))


def rename_values(connection: Connection) -> None:
    """Rename stored values and JSON keys, in tables whose columns have their new names."""
    for old, new in FAILURE_KINDS.items():
        renamed_kind = text("UPDATE attempts SET failure_kind = :new WHERE failure_kind = :old")
        connection.execute(renamed_kind, {"old": old, "new": new})
        connection.execute(text(RENAMED_DETAIL), {"old": f"{old}: ", "new": f"{new}: "})
    for old, new in CORDONS.items():
        connection.execute(text("UPDATE nodes SET cordon = :new WHERE cordon = :old"), {"old": old, "new": new})
    _rename_settings(connection)
    _rename_identities(connection)
    _rewrite(connection, "tasks", "id", "resources", RESOURCES, partial(_renamed, names=RESOURCES))
    for name, key in (("jobs", "id"), ("schedules", "name")):
        _rewrite(connection, name, key, "spec", BENCHMARK, partial(_renamed_in, section="benchmark", names=BENCHMARK))
    _rewrite(connection, "measurements", "id", "context", CONTEXT, partial(_renamed_deep, names=CONTEXT))


def _rename_settings(connection: Connection) -> None:
    """Rename keys of quantize settings, with the duration keys, which are digests of settings."""
    tasks = table("tasks", column("id", String), column("stage", String), column("duration_key", String))
    durations = table("durations", column("duration_key", String))

    def rename_duration_key(task: Any, old: Json, new: Json) -> None:
        row = connection.execute(select(tasks.c.stage, tasks.c.duration_key).where(tasks.c.id == task)).one()
        if row.duration_key == _duration_key(row.stage, old):
            renamed = {"duration_key": _duration_key(row.stage, new)}
            connection.execute(update(tasks).where(tasks.c.id == task).values(renamed))
            connection.execute(update(durations).where(durations.c.duration_key == row.duration_key).values(renamed))

    rename = partial(_renamed, names=SETTINGS)
    _rewrite(connection, "tasks", "id", "settings", SETTINGS, rename, rename_duration_key)


def _rename_identities(connection: Connection) -> None:
    """Rename keys of the settings in identities, with the digests of these: what is cached stays so."""
    attempts = table("attempts", column("id", String), column("digest", String))

    def rename_digest(attempt: Any, old: Json, new: Json) -> None:
        same = (attempts.c.id == attempt, attempts.c.digest == digest_of(old))
        connection.execute(update(attempts).where(*same).values(digest=digest_of(new)))

    rename = partial(_renamed_in, section="settings", names=SETTINGS)
    _rewrite(connection, "attempts", "id", "identity", SETTINGS, rename, rename_digest)


def _rewrite(
    connection: Connection,
    name: str,
    key: str,
    changed: str,
    keys: Iterable[str],
    rename: Callable[[Json], Json],
    follow_up: Callable[[Any, Json, Json], None] | None = None,
) -> None:
    """Rename in the JSON column of the rows that hold one of some keys; `follow_up` gets a row's key, old and new."""
    rows = table(name, column(key, Integer if name == "measurements" else String), column(changed, JSON(True)))
    as_text = cast(rows.c[changed], Text)
    holds = or_(*(as_text.contains(f'"{word}"', autoescape=True) for word in keys))
    query = select(rows.c[key], rows.c[changed]).where(holds).order_by(rows.c[key]).limit(AT_ONCE)
    page = connection.execute(query).all()
    while page:
        for row_key, old in page:
            new = rename(old)
            if new != old:
                connection.execute(update(rows).where(rows.c[key] == row_key).values({changed: new}))
                if follow_up:
                    follow_up(row_key, old, new)
        page = connection.execute(query.where(rows.c[key] > page[-1][0])).all()


def _duration_key(stage: str, settings: Mapping[str, Any]) -> str:
    """Return the digest of a stage's settings without the model's location."""
    values = dict(settings)
    if "model" in values:
        values["model"] = {name: value for name, value in values["model"].items() if name != "text"}
    return digest_of([stage, values])


def _renamed(value: Json, names: Mapping[str, str]) -> Json:
    return {names.get(name, name): inner for name, inner in value.items()}


def _renamed_in(value: Json, section: str, names: Mapping[str, str]) -> Json:
    inner = value.get(section)
    return {**value, section: _renamed(inner, names)} if isinstance(inner, dict) else value


def _renamed_deep(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(name, name): _renamed_deep(inner, names) for name, inner in value.items()}
    return [_renamed_deep(inner, names) for inner in value] if isinstance(value, list) else value
