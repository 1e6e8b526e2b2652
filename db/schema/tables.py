"""The tables. Each change here needs a migration too: a test runs `alembic check`."""

import json
from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    FetchedValue,
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

from db.schema.actors import current_actor

#: The migration that the tables below match; its number tells older schemas from newer ones.
SCHEMA = "0014"
VERSION_TABLE = "haloctl_schema"

#: Refuses NaN, which is not JSON and which Postgres refuses.
to_json = json.JSONEncoder(allow_nan=False).encode

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """A time with a time zone, returned in UTC; SQLite stores it as UTC without a zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without a time zone."""
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC, whatever the time zone of the server."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class SanitizedText(TypeDecorator[str]):
    """Text of tools and people; characters that databases refuse (NUL, lone surrogates) are replaced."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace the characters that can't be stored."""
        return None if value is None else value.encode(errors="replace").decode().replace("\0", "\ufffd")


def _id() -> String:
    """Return a string type that sorts byte by byte on Postgres too: ids with one prefix are neighbours in the index."""
    return String().with_variant(String(collation="C"), "postgresql")


def _big_id() -> BigInteger:
    """Return an autoincremented 64-bit type; SQLite counts up INTEGER only, which has 64 bits there."""
    return BigInteger().with_variant(Integer(), "sqlite")


#: Submitted and imported jobs.
jobs = Table(
    "jobs",
    metadata,
    Column("id", _id(), primary_key=True),  #: eight random hex digits
    Column("name", SanitizedText, nullable=False),  #: from the job file
    Column("model", SanitizedText, nullable=False),  #: names of its models, joined by commas
    Column("model_facts", JSON, nullable=False),  #: the models' digests, sizes and families when it was submitted
    Column("spec", JSON, nullable=False),  #: the job file with all defaults filled in
    Column("submitted_by", SanitizedText, nullable=False),  #: name of the user
    Column("submitted_at", UtcDateTime, nullable=False, index=True),  #: when it was submitted
    Column("timeout_s", Float, nullable=False),  #: limit of each attempt
    Column("reuse", Boolean, nullable=False),  #: outputs of earlier tasks may be reused, except measurements
    Column("priority", Integer, nullable=False, server_default="0"),  #: higher runs first
    Column("job_timeout_s", Float),  #: limit of the whole job, counted anew by each retry; null: none
    Column("due_at", UtcDateTime, index=True),  #: when the tasks that have not ended are cancelled; null: never
    Column("version", Integer, nullable=False, server_default="0"),  #: incremented by each change of its tasks
    Column("imported_from", SanitizedText),  #: the file that it was imported from; null: it was submitted
    Column("schedule", String),  #: name of the schedule that submitted it; null: a user did
)

#: One stage of one or several variants of a job.
tasks = Table(
    "tasks",
    metadata,
    Column("id", _id(), primary_key=True),  #: the job's id and the task's number in the plan
    Column("job", ForeignKey("jobs.id"), nullable=False, index=True),  #: the job that it belongs to
    Column("stage", String, nullable=False),  #: export, compile, benchmark, ...
    Column("subject", SanitizedText, nullable=False),  #: what it is done for, in a few words
    Column("target", String, nullable=False),  #: hardware target; empty when the stage does not depend on it
    Column("settings", JSON, nullable=False),  #: the stage's settings
    Column("needs", JSON, nullable=False),  #: ids of the tasks of its job whose outputs it reads
    Column("after", _id()),  #: the task of its job that a gate compares it with; it starts when that has ended
    Column("resources", JSON, nullable=False),  #: CPUs, memory, devices and nodes that an attempt reserves
    Column("pin", JSON(none_as_null=True)),  #: the only node and devices that it may run on; null: any
    Column("toolchain", String, nullable=False, server_default="default"),  #: name of the toolchain that it runs under
    Column("reuse", Boolean, nullable=False),  #: an earlier task's outputs may be reused
    Column("state", String, nullable=False),  #: pending, queued, running, succeeded, ...
    Column("epoch", Integer, nullable=False),  #: number of its latest attempt; 0 before the first
    Column("base_epoch", Integer, nullable=False),  #: its epoch when it was submitted or last retried
    Column("duration_key", String),  #: equal for tasks that take equally long; null: stored before schema 0003
    # The attempt whose outputs are this task's: its latest, or another task's after a cache hit. It is no foreign key,
    # because attempts refer to tasks.
    Column("attempt", _id()),  #: the attempt whose outputs it has; null: none yet
    Column("waits_for", SanitizedText),  #: why an open task does not run now; null: it is not open, or not yet said
    Column("is_unschedulable", Boolean, nullable=False),  #: the cluster as it is could never run it
    Column("blocked_by", SanitizedText),  #: why it was blocked or cancelled by the head
    Column("lost_artifacts", SanitizedText),  #: names of its lost files, until they are made again
    Column("failure", JSON(none_as_null=True)),  #: why it failed before it could run; null: its attempt has the failure
    Column("version", Integer, nullable=False, server_default="0"),  #: version of its job at its latest change
    Index(None, "state", "job"),
)

#: Cells of the jobs' matrices, each with its task; a task may belong to several.
cells = Table(
    "cells",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),  #: the job that the matrix belongs to
    Column("position", Integer, nullable=False),  #: number of the matrix row
    Column("model", SanitizedText, nullable=False, index=True),  #: name of the variant's model
    Column("variant", _id(), primary_key=True),  #: name of the variant
    Column("target", String, primary_key=True),  #: hardware target of the variant
    Column("stage", String, primary_key=True),  #: stage of the cell's task
    Column("precision", String, nullable=False),  #: precision of the weights
    Column("attention", String, nullable=False),  #: attention kernel
    Column("tp", Integer, nullable=False),  #: tensor parallelism
    Column("engine", String, nullable=False, server_default="iree"),  #: what runs the model
    Column("nodes", Integer, nullable=False, server_default="1"),  #: how many nodes it runs on
    Column("toolchain", String, nullable=False, server_default="default"),  #: name of the variant's toolchain
    Column("kv_precision", String, nullable=False, server_default="same"),  #: precision of the KV cache
    Column("kv_cache", String, nullable=False, server_default="contiguous"),  #: layout of the KV cache
    Column("quantizer", String, nullable=False, server_default="haloctl"),  #: what made the low-precision weights
    Column("exporter", String, nullable=False, server_default="haloctl"),  #: what made the program
    Column("pp", Integer, nullable=False, server_default="1"),  #: pipeline parallelism
    Column("finetune", String, nullable=False, server_default="none"),  #: name of the way in which its model is trained
    Column("flags", String, nullable=False, server_default="default"),  #: name of its set of compiler flags
    Column("env", String, nullable=False, server_default="default"),  #: name of its set of environment variables
    Column("task", ForeignKey("tasks.id"), nullable=False, index=True),  #: the task that fills the cell
    Column("is_first", Boolean, nullable=False),  #: first of the cells of one variant that share a task
    Column("submitted_at", UtcDateTime, nullable=False),  #: copied from the job, for the index
    Index(None, "variant", "target", "stage", "submitted_at", "job"),
    Index(None, "toolchain"),
)

#: Attempts of tasks.
attempts = Table(
    "attempts",
    metadata,
    Column("id", _id(), primary_key=True),  #: the task's id and the attempt's epoch
    Column("task", ForeignKey("tasks.id"), nullable=False, index=True),  #: the task that was attempted
    Column("epoch", Integer, nullable=False),  #: number of the attempt, from 1
    Column("node", String, nullable=False),  #: names of its nodes, joined by +
    Column("places", JSON, nullable=False),  #: its nodes, each with the devices that it held there
    Column("weight", Float),  #: devices that it counts for in fair shares; null: stored before schema 0003
    Column("term", Integer),  #: term of the head that started it; null: stored before schema 0003
    Column("commands", JSON, nullable=False),  #: argv and environment of each command
    Column("inputs", JSON, nullable=False),  #: artifacts that it read, by the stage that made them
    Column("digest", String, nullable=False, index=True),  #: digest of its identity: equal digests mean equal outputs
    Column("identity", JSON(none_as_null=True)),  #: all that its outputs follow from; null: stored before schema 0002
    Column("toolchain", String, nullable=False),  #: name of its toolchain
    Column("lock", String, nullable=False, server_default=""),  #: digest in `toolchains`; empty: haloctl's environment
    Column("versions", JSON, nullable=False),  #: versions of the packages that it ran under
    Column("host_cpu", String, nullable=False),  #: CPU architecture that it compiled for
    Column("environment", JSON, nullable=False),  #: environment variables of its processes
    Column("timeout_s", Float, nullable=False),  #: limit of its run time
    Column("started_at", UtcDateTime, nullable=False, index=True),  #: when the head started it
    Column("ended_at", UtcDateTime, index=True),  #: when its result was stored; null: it runs
    Column("duration_s", Float),  #: how long it took, by its node's monotonic clock; null: it runs, or nobody knows
    Column("outcome", String),  #: succeeded, failed or cancelled; null: it runs
    Column("failure_kind", String),  #: kind of its failure; null: none
    Column("failure_message", SanitizedText),  #: its failure in one line
    Column("is_counted", Boolean),  #: its failure used up one of the task's tries
    Column("log_tail", SanitizedText),  #: end of the log of a failed attempt
    Column("warnings", JSON, nullable=False),  #: what its tools warned of
    Column("processes", JSON, nullable=False),  #: argv, exit code, time and memory of each process
)

#: Files that attempts made; the files themselves are in the artifact store.
artifacts = Table(
    "artifacts",
    metadata,
    Column("attempt", ForeignKey("attempts.id"), primary_key=True),  #: the attempt that made it
    Column("name", _id(), primary_key=True),  #: its file name
    Column("kind", String, nullable=False),  #: irpa, mlir, vmfb, log, ...
    Column("sha256", String, nullable=False, index=True),  #: digest of its content, its name in the artifact store
    Column("size_bytes", BigInteger, nullable=False),  #: its size
)

#: Numbers that attempts measured.
measurements = Table(
    "measurements",
    metadata,
    Column("id", _big_id(), primary_key=True),  #: grows in the order of time
    Column("attempt", ForeignKey("attempts.id"), nullable=False),  #: the attempt that measured it
    Column("metric", String, nullable=False, index=True),  #: ttft_ms, compile_s, ...
    Column("unit", String, nullable=False),  #: unit of the samples
    Column("median", Float, nullable=False),  #: median of the samples
    Column("samples", JSON, nullable=False),  #: all samples in the order in which they were taken
    Column("batch", Integer),  #: batch size of the workload, copied from the context
    Column("prompt_tokens", Integer),  #: prompt length of the workload, copied from the context
    Column("context", JSON, nullable=False),  #: what may make the number larger or smaller: workload, machine, clocks
    Index(None, "attempt", "metric"),
)

#: Changes of state, one row each; never updated.
events = Table(
    "events",
    metadata,
    Column("id", _big_id(), primary_key=True),  #: grows in the order of the changes
    Column("at", UtcDateTime, nullable=False),  #: when it happened
    Column("job", ForeignKey("jobs.id"), nullable=False, index=True),  #: the job that changed
    Column("task", ForeignKey("tasks.id"), index=True),  #: the task that changed; null: the job was submitted
    Column("attempt", ForeignKey("attempts.id")),  #: the attempt that started or ended; null: none did
    Column("from_state", String),  #: state before; null: the job was submitted
    Column("to_state", String),  #: state after; null: the job was submitted
    Column("detail", SanitizedText, nullable=False),  #: why, in one line
    Column("actor", SanitizedText, default=current_actor),  #: user whose process made the change; null: not known
    Column("database_user", String, server_default=FetchedValue()),  #: user of the session; null: SQLite, or not known
)

#: Changes that move no task, one row each; never updated.
changes = Table(
    "changes",
    metadata,
    Column("id", _big_id(), primary_key=True),  #: grows in the order of the changes
    Column("at", UtcDateTime, nullable=False),  #: when it happened
    Column("actor", SanitizedText, nullable=False, default=current_actor),  #: user whose process made the change
    Column("database_user", String, server_default=FetchedValue()),  #: user of the session; null: SQLite has none
    Column("action", String, nullable=False),  #: pin, gc, drain, ...
    Column("subject", SanitizedText, nullable=False),  #: what was changed: a file, a node, a schedule, ...
    Column("detail", SanitizedText, nullable=False),  #: the reason, or what else there is to say
)

#: Recent durations of tasks, from which the scheduler estimates how long similar tasks take.
durations = Table(
    "durations",
    metadata,
    Column("duration_key", _id(), primary_key=True),  #: `tasks.duration_key`
    Column("recent_s", JSON, nullable=False),  #: of the latest attempts that succeeded, oldest first
)

#: Terms of leaders: a row for each time that a process became the leader. Agents obey only the newest term they know.
terms = Table(
    "terms",
    metadata,
    Column("id", _big_id(), primary_key=True),  #: number of the term; the highest one counts
    Column("kind", String, nullable=False),  #: head: the daemon; embedded: a command that runs its own job
    Column("host", SanitizedText, nullable=False),  #: host name of the leader
    Column("pid", Integer, nullable=False),  #: process id of the leader
    Column("started_at", UtcDateTime, nullable=False),  #: when it became the leader
    Column("ended_at", UtcDateTime),  #: when it stopped; null: it leads, or was killed
)

#: Machines that heads have seen, as they last described themselves.
nodes = Table(
    "nodes",
    metadata,
    Column("id", _id(), primary_key=True),  #: name of the node
    Column("host", SanitizedText, nullable=False),  #: its host name
    Column("address", String, nullable=False),  #: its IP address
    Column("cpus", Integer, nullable=False),  #: its logical CPUs
    Column("memory_bytes", BigInteger, nullable=False),  #: its memory
    Column("versions", JSON, nullable=False),  #: versions of its drivers and of haloctl's packages there
    Column("first_seen_at", UtcDateTime, nullable=False),  #: when a head first saw it
    Column("last_seen_at", UtcDateTime, nullable=False),  #: when a head last saw it
    Column("is_up", Boolean, nullable=False),  #: it was up when a head last looked
    Column("cordon", String),  #: draining, requeuing or quarantined: nothing new starts on it; null: not cordoned
    Column("cordon_reason", SanitizedText),  #: why it was cordoned
    Column("cordoned_at", UtcDateTime),  #: when it was cordoned
    Column("cordoned_after", BigInteger),  #: number of the newest event then; null: not cordoned
    Column("not_ready_reason", SanitizedText),  #: why it takes no task now, found by itself or the head; null: ready
    Column("checks", JSON, nullable=False),  #: results of the last check of its settings
    Column("toolchains", JSON, nullable=False, server_default="{}"),  #: by digest, why it can't use one; empty: it can
)

#: GPUs and logical CPU devices of the nodes.
devices = Table(
    "devices",
    metadata,
    Column("node", ForeignKey("nodes.id"), primary_key=True),  #: the node that it is in
    Column("kind", String, primary_key=True),  #: cpu, mi300x, h100, ...
    Column("index", Integer, primary_key=True, autoincrement=False),  #: its index among the node's devices of its kind
    Column("serial", String, nullable=False),  #: its serial number; empty: unknown
    Column("memory_bytes", BigInteger, nullable=False),  #: its memory; 0: unknown
    Column("memory_used_bytes", BigInteger),  #: memory in use when a head last looked; null: unknown
    Column("quarantine_reason", SanitizedText),  #: why it must not be used; null: it may be used
    Column("quarantined_at", UtcDateTime),  #: when it was quarantined
    Column("quarantined_after", BigInteger),  #: number of the newest event then; null: it may be used
)

#: Locks that names of toolchains were resolved to; the newest lock of a name is in use.
toolchains = Table(
    "toolchains",
    metadata,
    Column("name", _id(), primary_key=True),  #: name of the toolchain
    Column("digest", _id(), primary_key=True),  #: digest of the lock
    Column("source", String, nullable=False),  #: digest of what was resolved; another digest makes the lock stale
    Column("is_overlay", Boolean, nullable=False),  #: it is installed over haloctl's own environment
    Column("python", String, nullable=False),  #: version of its Python
    Column("lines", JSON, nullable=False),  #: its requirements with versions and hashes
    Column("versions", JSON, nullable=False),  #: versions of its packages
    Column("compiler_flags", JSON(none_as_null=True)),  #: flags of its compiler; null: no node has built it yet
    Column("resolved_at", UtcDateTime, nullable=False),  #: when the name was resolved to it
)

#: Artifacts that are kept whatever happens to the jobs that made them.
pins = Table(
    "pins",
    metadata,
    Column("sha256", _id(), primary_key=True),  #: digest of the artifact
    Column("why", SanitizedText, nullable=False),  #: the reason that the user gave
    Column("pinned_by", SanitizedText, nullable=False),  #: name of the user
    Column("pinned_at", UtcDateTime, nullable=False),  #: when it was pinned
)

#: Running attempts whose logs somebody follows; the head fetches these logs.
followed_logs = Table(
    "followed_logs",
    metadata,
    Column("attempt", ForeignKey("attempts.id"), primary_key=True),  #: the attempt that is followed
    Column("until", UtcDateTime, nullable=False),  #: when fetching stops unless it is extended
)

#: Parts of followed logs; deleted when the attempt ends, since its log is an artifact then.
log_chunks = Table(
    "log_chunks",
    metadata,
    Column("attempt", ForeignKey("attempts.id"), primary_key=True),  #: the attempt that wrote it
    Column("offset", BigInteger, primary_key=True, autoincrement=False),  #: where it begins in the log, in bytes
    Column("text", SanitizedText, nullable=False),  #: its text
)

#: Quoted numbers that results are compared with. An empty or null condition fits everything.
targets = Table(
    "targets",
    metadata,
    Column("id", _big_id(), primary_key=True),  #: a number
    Column("variant", SanitizedText, nullable=False),  #: name of a variant, or a shell-style pattern
    Column("target", String, nullable=False),  #: hardware target; empty: any
    Column("metric", String, nullable=False),  #: the metric that it is for
    Column("batch", Integer),  #: batch size; null: any
    Column("prompt_tokens", Integer),  #: prompt length; null: any
    Column("new_tokens", Integer),  #: generated tokens; null: any
    Column("value", Float, nullable=False),  #: the quoted number
    Column("unit", String, nullable=False),  #: its unit
    Column("source", SanitizedText, nullable=False),  #: where it was published
    Column("recorded_by", SanitizedText, nullable=False),  #: name of the user who recorded it
    Column("since", UtcDateTime, nullable=False),  #: when it takes effect, until a newer one with the same conditions
)

#: Cells that were imported, so that none is imported twice.
imports = Table(
    "imports",
    metadata,
    Column("digest", _id(), primary_key=True),  #: digest of the imported cell
    Column("job", ForeignKey("jobs.id"), nullable=False, index=True),  #: the job that it was imported into
)

#: Jobs that the head submits again and again.
schedules = Table(
    "schedules",
    metadata,
    Column("name", _id(), primary_key=True),  #: name of the schedule
    Column("cron", String, nullable=False),  #: cron expression
    Column("timezone", String, nullable=False),  #: time zone of the cron expression
    Column("file", SanitizedText, nullable=False),  #: path of the job file when it was added
    Column("text", SanitizedText, nullable=False),  #: content of the job file when it was added
    Column("spec", JSON, nullable=False),  #: the job file with all defaults filled in
    Column("model_facts", JSON, nullable=False),  #: the models' digests, sizes and families when it was added
    Column("if_missed", String, nullable=False),  #: run: submit the latest missed time late; skip: submit none
    Column("is_paused", Boolean, nullable=False),  #: nothing is submitted
    Column("next_at", UtcDateTime, index=True),  #: when it is due next; null: it is paused, or never due again
    Column("added_by", SanitizedText, nullable=False),  #: name of the user
    Column("added_at", UtcDateTime, nullable=False),  #: when it was added
)

#: Outcomes of the times at which schedules were due.
schedule_runs = Table(
    "schedule_runs",
    metadata,
    Column("id", _big_id(), primary_key=True),  #: a number
    Column("schedule", ForeignKey("schedules.name"), nullable=False),  #: the schedule
    Column("due_at", UtcDateTime, nullable=False),  #: when it was due; the first of several missed times
    Column("at", UtcDateTime, nullable=False),  #: when the head noticed
    Column("outcome", String, nullable=False),  #: submitted, missed or failed
    Column("count", Integer, nullable=False),  #: how many times in a row were missed
    Column("job", ForeignKey("jobs.id"), index=True),  #: the job that was submitted; null: none
    Column("detail", SanitizedText, nullable=False),  #: why it was missed or failed
    Index(None, "schedule", "due_at"),
)

#: Times at which reports were written; the next report shows what changed since.
reports = Table(
    "reports",
    metadata,
    Column("id", _big_id(), primary_key=True),  #: a number
    Column("at", UtcDateTime, nullable=False),  #: when it was written
    Column("made_by", SanitizedText, nullable=False),  #: name of the user
)

#: Tokens with which users reach the web server; they are no part of an export.
tokens = Table(
    "tokens",
    metadata,
    Column("id", _id(), primary_key=True),  #: eight random hex digits
    Column("user", SanitizedText, nullable=False),  #: name of the user
    Column("role", String, nullable=False),  #: reader, submitter, admin or proxy
    Column("sha256", String, nullable=False),  #: digest of the token
    Column("created_at", UtcDateTime, nullable=False),  #: when it was created
    Column("created_by", SanitizedText, nullable=False),  #: name of the user who created it
    Column("expires_at", UtcDateTime),  #: when it expires; null: never
)

#: The tables whose rows are exported and imported, in an order in which rows follow those that they refer to.
TRANSFERRED = [table for table in metadata.sorted_tables if table is not tokens]
