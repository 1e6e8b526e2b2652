"""The tables. A change here is a migration too: `alembic check` is a test."""

import json
from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

#: The revision that the tables below are; revisions are numbered, so that an older and a newer one can be told apart.
SCHEMA = "0006"
VERSION_TABLE = "haloctl_schema"

#: NaN is no JSON, and Postgres refuses it.
to_json = json.JSONEncoder(allow_nan=False).encode

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Moment(TypeDecorator[datetime]):
    """An aware time; SQLite keeps it as UTC without saying so."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time that could be anywhere."""
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """In UTC, whatever the server's zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Told(TypeDecorator[str]):
    """Text that tools and people wrote: what no database takes (NUL, half characters) is replaced."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace what can't be stored."""
        return None if value is None else value.encode(errors="replace").decode().replace("\0", "\ufffd")


def _id() -> String:
    """Sorted byte by byte on Postgres as on SQLite, so that the ids with one start are neighbours in the index."""
    return String().with_variant(String(collation="C"), "postgresql")


def _big_id() -> BigInteger:
    """A number that counts up; SQLite does so for INTEGER only, which has 64 bits there."""
    return BigInteger().with_variant(Integer(), "sqlite")


jobs = Table(
    "jobs",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("name", Told, nullable=False),
    Column("model", Told, nullable=False),  #: its name; of several their names
    Column("model_facts", JSON, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("submitted_by", Told, nullable=False),
    Column("submitted_at", Moment, nullable=False, index=True),
    Column("timeout_s", Float, nullable=False),  #: of one attempt
    Column("reuse", Boolean, nullable=False),
    Column("priority", Integer, nullable=False, server_default="0"),  #: higher goes first
    Column("job_timeout_s", Float),  #: of the whole job, each time that it is asked for; none: as long as it takes
    Column("due_at", Moment, index=True),  #: when what is left of it is cancelled
    Column("version", Integer, nullable=False, server_default="0"),  #: another one after each change of its tasks
    Column("imported_from", Told),  #: the file that it was read from; none: it was submitted
    Column("schedule", String),  #: the name of the one that submitted it; none: somebody did
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("job", ForeignKey("jobs.id"), nullable=False, index=True),
    Column("stage", String, nullable=False),
    Column("subject", Told, nullable=False),
    Column("target", String, nullable=False),  #: empty when the stage does not depend on it
    Column("settings", JSON, nullable=False),
    Column("needs", JSON, nullable=False),  #: ids of tasks of the same job
    Column("after", _id()),  #: the task of the same job that it is compared with, and begins after
    Column("resources", JSON, nullable=False),
    Column("pin", JSON(none_as_null=True)),  #: where alone it may run
    Column("toolchain", String, nullable=False, server_default="default"),  #: the name of what it runs under
    Column("reuse", Boolean, nullable=False),  #: an earlier task's outputs may be taken over
    Column("state", String, nullable=False),
    Column("epoch", Integer, nullable=False),  #: of its latest attempt; 0 before the first
    Column("asked_epoch", Integer, nullable=False),  #: its epoch when it was submitted or last retried
    Column("likeness", String),  #: equal for tasks that take equally long; none: from before schema 0003
    # The attempt whose outputs are this task's: its latest, or that of the task that it was taken over from. No foreign
    # key: it would be half of a circle.
    Column("attempt", _id()),
    Column("waits_for", Told),
    Column("is_stuck", Boolean, nullable=False),
    Column("blocked_by", Told),
    Column("lost", Told),  #: its files that were lost, from when that is found until they are made again
    Column("failure", JSON(none_as_null=True)),  #: why it failed before it could run; none: its attempt tells
    Column("version", Integer, nullable=False, server_default="0"),  #: its job's, as of its latest change
    Index(None, "state", "job"),
)

#: Which task stands in which cell of a job's matrix; one task may stand in several.
cells = Table(
    "cells",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("position", Integer, nullable=False),  #: of its row in the job's matrix
    Column("model", Told, nullable=False, index=True),  #: its name; a job may have several
    Column("variant", _id(), primary_key=True),
    Column("target", String, primary_key=True),
    Column("stage", String, primary_key=True),
    Column("precision", String, nullable=False),
    Column("attention", String, nullable=False),
    Column("tp", Integer, nullable=False),
    Column("engine", String, nullable=False, server_default="iree"),
    Column("nodes", Integer, nullable=False, server_default="1"),
    Column("toolchain", String, nullable=False, server_default="default"),
    Column("kv_precision", String, nullable=False, server_default="same"),
    Column("kv_cache", String, nullable=False, server_default="contiguous"),
    Column("quantizer", String, nullable=False, server_default="haloctl"),
    Column("exporter", String, nullable=False, server_default="haloctl"),
    Column("pp", Integer, nullable=False, server_default="1"),
    Column("task", ForeignKey("tasks.id"), nullable=False, index=True),
    Column("is_first", Boolean, nullable=False),  #: of the cells of one variant that its task stands in
    Column("submitted_at", Moment, nullable=False),  #: its job was: here too, for the newest of a place to be found
    Index(None, "variant", "target", "stage", "submitted_at", "job"),
    Index(None, "toolchain"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("task", ForeignKey("tasks.id"), nullable=False, index=True),
    Column("epoch", Integer, nullable=False),
    Column("node", String, nullable=False),  #: the names of all its nodes, joined by +
    Column("places", JSON, nullable=False),  #: each a node with the devices of it that the attempt held
    Column("weight", Float),  #: its devices; without any, what its cores count for; none: from before schema 0003
    Column("term", Integer),  #: of the head that began it; none: from before schema 0003
    Column("commands", JSON, nullable=False),
    Column("inputs", JSON, nullable=False),
    Column("digest", String, nullable=False, index=True),
    Column("identity", JSON(none_as_null=True)),  #: what the digest is of; none: from before schema 0002
    Column("toolchain", String, nullable=False),  #: its name
    Column("lock", String, nullable=False, server_default=""),  #: its digest in `toolchains`; empty: what haloctl is in
    Column("versions", JSON, nullable=False),
    Column("host_cpu", String, nullable=False),
    Column("environment", JSON, nullable=False),
    Column("timeout_s", Float, nullable=False),
    Column("started_at", Moment, nullable=False, index=True),
    Column("ended_at", Moment, index=True),
    Column("outcome", String),  #: succeeded, failed or cancelled
    Column("failure_kind", String),
    Column("failure_message", Told),
    Column("is_counted", Boolean),  #: its failure used up one of the task's tries
    Column("log_tail", Told),
    Column("warnings", JSON, nullable=False),
    Column("processes", JSON, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("attempt", ForeignKey("attempts.id"), primary_key=True),
    Column("name", _id(), primary_key=True),
    Column("kind", String, nullable=False),
    Column("sha256", String, nullable=False, index=True),
    Column("size_bytes", BigInteger, nullable=False),
)

measurements = Table(
    "measurements",
    metadata,
    Column("id", _big_id(), primary_key=True),
    Column("attempt", ForeignKey("attempts.id"), nullable=False),
    Column("metric", String, nullable=False, index=True),
    Column("unit", String, nullable=False),
    Column("median", Float, nullable=False),
    Column("samples", JSON, nullable=False),
    Column("batch", Integer),
    Column("prompt_tokens", Integer),
    Column("context", JSON, nullable=False),
    Index(None, "attempt", "metric"),
)

events = Table(
    "events",
    metadata,
    Column("id", _big_id(), primary_key=True),
    Column("at", Moment, nullable=False),
    Column("job", ForeignKey("jobs.id"), nullable=False, index=True),
    Column("task", ForeignKey("tasks.id"), index=True),  #: none: the job's submission
    Column("attempt", ForeignKey("attempts.id")),
    Column("was", String),
    Column("became", String),
    Column("detail", Told, nullable=False),
)

#: How long tasks took lately.
durations = Table(
    "durations",
    metadata,
    Column("likeness", _id(), primary_key=True),
    Column("recent_s", JSON, nullable=False),  #: of the attempts that succeeded, oldest first
)

#: Each time that somebody became the leader. An agent obeys the newest term that it has heard of.
terms = Table(
    "terms",
    metadata,
    Column("id", _big_id(), primary_key=True),
    Column("kind", String, nullable=False),  #: head: the daemon; embedded: a command that drove its own job
    Column("host", Told, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("began_at", Moment, nullable=False),
    Column("ended_at", Moment),  #: none: it leads, or was killed
)

#: The machines that heads have seen. What they are is what they last said of themselves.
nodes = Table(
    "nodes",
    metadata,
    Column("id", _id(), primary_key=True),  #: its name
    Column("host", Told, nullable=False),
    Column("address", String, nullable=False),
    Column("cpus", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("versions", JSON, nullable=False),  #: of drivers and of the toolchain
    Column("first_seen_at", Moment, nullable=False),
    Column("seen_at", Moment, nullable=False),
    Column("is_up", Boolean, nullable=False),
    Column("closed", String),  #: draining, handing_back or quarantined: nothing new is started on it
    Column("closed_why", Told),
    Column("closed_at", Moment),
    Column("refuses_why", Told),  #: why it takes nothing now, by what it or the head finds; none: it does
    Column("checks", JSON, nullable=False),  #: what the last check of its settings found
    Column("toolchains", JSON, nullable=False, server_default="{}"),  #: by digest, why one can't be used; empty: it can
)

devices = Table(
    "devices",
    metadata,
    Column("node", ForeignKey("nodes.id"), primary_key=True),
    Column("kind", String, primary_key=True),
    Column("index", Integer, primary_key=True, autoincrement=False),
    Column("serial", String, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("memory_used_bytes", BigInteger),  #: when it was last looked at
    Column("quarantined_why", Told),  #: none: it may be used
    Column("quarantined_at", Moment),
)

#: What names of toolchains were resolved to; the newest of a name is in use.
toolchains = Table(
    "toolchains",
    metadata,
    Column("name", _id(), primary_key=True),
    Column("digest", _id(), primary_key=True),
    Column("source", String, nullable=False),  #: a digest of what it was resolved from: another one makes it stale
    Column("is_over", Boolean, nullable=False),  #: it lies over what haloctl is installed in
    Column("python", String, nullable=False),
    Column("lines", JSON, nullable=False),
    Column("versions", JSON, nullable=False),
    Column("compiler_flags", JSON(none_as_null=True)),  #: none: no node has built it yet
    Column("resolved_at", Moment, nullable=False),
)

#: Files that are kept whatever becomes of the jobs that made them.
pins = Table(
    "pins",
    metadata,
    Column("sha256", _id(), primary_key=True),
    Column("why", Told, nullable=False),
    Column("pinned_by", Told, nullable=False),
    Column("pinned_at", Moment, nullable=False),
)

#: Attempts whose logs somebody follows: until then the head fetches what they write.
followed_logs = Table(
    "followed_logs",
    metadata,
    Column("attempt", ForeignKey("attempts.id"), primary_key=True),
    Column("until", Moment, nullable=False),
)

#: What was fetched of them; it goes when the attempt has ended, for then the log is an artifact.
log_chunks = Table(
    "log_chunks",
    metadata,
    Column("attempt", ForeignKey("attempts.id"), primary_key=True),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),  #: in bytes
    Column("text", Told, nullable=False),
)

#: Quoted numbers that measured ones are held against. What is open (empty, or none) is so for all.
targets = Table(
    "targets",
    metadata,
    Column("id", _big_id(), primary_key=True),
    Column("variant", Told, nullable=False),  #: a name, or a shell-style pattern
    Column("target", String, nullable=False),
    Column("metric", String, nullable=False),
    Column("batch", Integer),
    Column("prompt_tokens", Integer),
    Column("new_tokens", Integer),
    Column("value", Float, nullable=False),
    Column("unit", String, nullable=False),
    Column("source", Told, nullable=False),
    Column("recorded_by", Told, nullable=False),
    Column("since", Moment, nullable=False),  #: from when it holds, until another of the same kind does
)

#: What was imported, so that it is so once.
imports = Table(
    "imports",
    metadata,
    Column("digest", _id(), primary_key=True),
    Column("job", ForeignKey("jobs.id"), nullable=False, index=True),
)

#: Jobs that are submitted again and again.
schedules = Table(
    "schedules",
    metadata,
    Column("name", _id(), primary_key=True),
    Column("cron", String, nullable=False),
    Column("timezone", String, nullable=False),
    Column("file", Told, nullable=False),  #: that it was read from, when it was added
    Column("text", Told, nullable=False),  #: of that file
    Column("spec", JSON, nullable=False),
    Column("model_facts", JSON, nullable=False),
    Column("if_missed", String, nullable=False),  #: run: the latest one that was missed; skip: none
    Column("is_paused", Boolean, nullable=False),
    Column("next_at", Moment, index=True),  #: none: it is paused, or never comes again
    Column("added_by", Told, nullable=False),
    Column("added_at", Moment, nullable=False),
)

#: What came of each time that a schedule was due.
schedule_runs = Table(
    "schedule_runs",
    metadata,
    Column("id", _big_id(), primary_key=True),
    Column("schedule", ForeignKey("schedules.name"), nullable=False),
    Column("due_at", Moment, nullable=False),  #: of several that were missed the first
    Column("at", Moment, nullable=False),
    Column("outcome", String, nullable=False),  #: submitted, missed or failed
    Column("count", Integer, nullable=False),  #: of the times that were missed in a row
    Column("job", ForeignKey("jobs.id"), index=True),
    Column("detail", Told, nullable=False),
    Index(None, "schedule", "due_at"),
)

#: When reports were written: the next one tells what changed since.
reports = Table(
    "reports",
    metadata,
    Column("id", _big_id(), primary_key=True),
    Column("at", Moment, nullable=False),
    Column("made_by", Told, nullable=False),
)
